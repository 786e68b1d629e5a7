// What speedscope reads of a file: unit and own weight by function, as JSON.
// Usage: node BUNDLE FILE [OUT.speedscope.json]; OUT is what speedscope itself exports.
import * as fs from 'fs'
import * as path from 'path'
import {importProfilesFromArrayBuffer} from 'speedscope/import'
import {exportProfileGroup} from 'speedscope/lib/file-format'

console.log = () => {}
const [file, out] = process.argv.slice(2)

async function main() {
  const bytes = fs.readFileSync(file)
  const buffer = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength)
  const group = await importProfilesFromArrayBuffer(path.basename(file), buffer as ArrayBuffer)
  if (!group) throw new Error('speedscope does not know this file')
  if (out) fs.writeFileSync(out, JSON.stringify(exportProfileGroup(group)))
  // Profiles of several units cannot be added: those of the unit that most have are told.
  const units: {[unit: string]: {count: number; own: {[name: string]: number}}} = {}
  for (const profile of group.profiles) {
    const of = (units[profile.getWeightUnit()] ||= {count: 0, own: {}})
    of.count++
    profile.forEachFrame(frame => {
      of.own[frame.name] = (of.own[frame.name] || 0) + frame.getSelfWeight()
    })
  }
  const [unit, {own}] = Object.entries(units).sort((a, b) => b[1].count - a[1].count)[0]
  process.stdout.write(JSON.stringify({unit, own}))
}

main().catch(error => {
  process.stderr.write(String(error))
  process.exit(1)
})
