// The bytes of the profile inside the page: base64 to bytes, gzip to bytes, bytes to columns of numbers.
// Not for: what the columns mean (data.js).

/**
 * @param {string} text base64, blanks ignored
 * @returns {Uint8Array}
 */
export function bytesOfBase64(text) {
  const binary = atob(text.trim());
  const bytes = new Uint8Array(binary.length);
  for (let at = 0; at < binary.length; at++) bytes[at] = binary.charCodeAt(at);
  return bytes;
}

/**
 * @param {Uint8Array} bytes gzip
 * @returns {Promise<Uint8Array>}
 */
export async function gunzip(bytes) {
  const blob = new Blob([/** @type {any} */ (bytes)]);
  const stream = blob.stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/**
 * A column of numbers. Each is a little-endian base-128 number ("varint"), in one of these forms:
 *   plain  the number
 *   delta  zigzag of the difference to the number before it
 *   back   how far the number lies behind its own index: parents of nodes
 * @param {Uint8Array} bytes
 * @param {number} start first byte
 * @param {number} count how many numbers
 * @param {string} form
 * @returns {Float64Array}
 */
export function column(bytes, start, count, form) {
  const out = new Float64Array(count);
  let at = start;
  let before = 0;
  for (let index = 0; index < count; index++) {
    let value = 0;
    let scale = 1;
    let byte = 0;
    do {
      // Reading past the end yields `undefined`, which ends the number.
      byte = bytes[at++] | 0;
      value += (byte & 0x7f) * scale;
      scale *= 128;
    } while (byte >= 0x80);
    if (form === "delta") {
      const half = Math.floor(value / 2);
      before += value % 2 === 1 ? -half - 1 : half;
      value = before;
    } else if (form === "back") {
      value = index - value;
    }
    out[index] = value;
  }
  return out;
}
