// The container of binary columns of the Firefox Profiler, in place of the package json-slabs, which not
// every registry has. Only writing; profiler-cli reads what comes of it with its own code.

const KINDS: [Function, number][] = [
  [Int8Array, 0], [Uint8Array, 1], [Int16Array, 2], [Uint16Array, 3], [Int32Array, 4],
  [Uint32Array, 5], [Float32Array, 6], [Float64Array, 7],
]

export function encode(root: unknown, split: unknown[] = []): Uint8Array {
  const slabs: {kind: number; bytes: Uint8Array}[] = []
  const text = (value: unknown, itself: unknown) =>
    new TextEncoder().encode(
      JSON.stringify(value, (_key, part) => {
        if (part === itself || part === null || typeof part !== 'object') return part
        const kind = KINDS.find(([type]) => part instanceof (type as any))
        if (kind) {
          slabs.push({kind: kind[1], bytes: new Uint8Array(part.buffer, part.byteOffset, part.byteLength)})
          return {$s: slabs.length - 1}
        }
        if (!split.includes(part)) return part
        const bytes = text(part, part)
        slabs.push({kind: 10, bytes})
        return {$s: slabs.length - 1}
      })
    )
  slabs.push({kind: 10, bytes: text(root, root)})
  const aligned = (length: number) => Math.ceil(length / 8) * 8
  let start = aligned(20 + 12 * slabs.length)
  const out = new Uint8Array(slabs.reduce((sum, slab) => sum + aligned(slab.bytes.length), start))
  out.set([0xdc, 0xdf, 0x4a, 0x53, 0x4c, 0x42, 1, 0])
  const view = new DataView(out.buffer)
  ;[1, slabs.length, slabs.length - 1].forEach((word, at) => view.setUint32(8 + 4 * at, word, true))
  slabs.forEach(({kind, bytes}, at) => {
    ;[kind, start, bytes.length].forEach((word, i) => view.setUint32(20 + 12 * at + 4 * i, word, true))
    out.set(bytes, start)
    start += aligned(bytes.length)
  })
  return out
}

export const isJsonSlabsFile = () => false
export const decode = () => {
  throw new Error('not read here')
}
