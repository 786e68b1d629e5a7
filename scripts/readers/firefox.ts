// Saves a file of another tool as the Firefox Profiler saves it. Usage: node BUNDLE FILE OUT.json|OUT.jslb
import * as fs from 'fs'
import {
  optimizeProfileForStorage,
  serializeProfileToJsonSlabsFile,
  serializeProfileToJsonString,
  unserializeProfileOfArbitraryFormat,
} from 'firefox-profiler/profile-logic/process-profile'

// Some modules look for a browser's window.
;(globalThis as any).self = globalThis
const [file, out] = process.argv.slice(2)

async function main() {
  const bytes = fs.readFileSync(file)
  const profile = await unserializeProfileOfArbitraryFormat(new Uint8Array(bytes))
  fs.writeFileSync(
    out,
    out.endsWith('.jslb')
      ? serializeProfileToJsonSlabsFile(optimizeProfileForStorage(profile))
      : serializeProfileToJsonString(profile)
  )
}

main().catch((error) => {
  process.stderr.write(String(error))
  process.exit(1)
})
