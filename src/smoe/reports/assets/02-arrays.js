// The arrays of the page: one compressed block, read once.

const KINDS = { u8: Uint8Array, u16: Uint16Array, i16: Int16Array, i32: Int32Array, f32: Float32Array };

let block = new ArrayBuffer(0);

async function readArrays() {
  const text = document.getElementById("arrays").textContent.trim();
  if (!text) return;
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  block = await new Response(stream).arrayBuffer();
}

function arrayOf(reference) {
  return new KINDS[reference.type](block, reference.at, reference.count);
}

// Numbers that were rounded to 65,535 levels; NaN where there is none.
function numbersOf(reference) {
  const levels = arrayOf(reference);
  return Float64Array.from(levels, (level) => (level === 65535 ? NaN : reference.low + level * reference.step));
}

// Whether an expert is selected at a pixel; bits in the order of numpy.packbits.
function isSelected(bits, expert, pixel, numPixels) {
  const place = expert * numPixels + pixel;
  return (bits[place >> 3] & (128 >> (place & 7))) !== 0;
}
