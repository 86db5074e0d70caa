// A mesh in space, drawn into a buffer of depths: near triangles cover far ones.

function meshView(places, width, turn) {
  const positions = arrayOf(places.coordinates);
  const count = positions.length / 3;
  const highest = Math.round(Math.min(460, Math.max(240, innerHeight * 0.6)) * devicePixelRatio);
  const { right, up, near } = project(positions, count, places.flat ? null : turn);
  const [lowX, highX] = extent(right);
  const [lowY, highY] = extent(up);
  const wide = highX - lowX || 1;
  const tall = highY - lowY || 1;
  const margin = 6 * devicePixelRatio;
  // A body that is turned keeps its size: its longest diagonal fits.
  const size = places.flat ? Math.max(wide, tall) : longestReach(positions, count) * 2;
  // Points reach over the outermost nodes by their radius on each side.
  const room = places.triangles ? 0 : 2 * pointShare(count) * (places.flat ? Math.sqrt(wide * tall) : size);
  const scale = places.flat
    ? Math.min((width - 2 * margin) / (wide + room), (highest - 2 * margin) / (tall + room))
    : (Math.min(width, highest) - 2 * margin) / (size + room);
  const height = Math.round(places.flat ? Math.min(highest, (tall + room) * scale + 2 * margin) : highest);
  const x = Float32Array.from(right, (value) => width / 2 + (value - (places.flat ? (lowX + highX) / 2 : 0)) * scale);
  const y = Float32Array.from(up, (value) => height / 2 - (value - (places.flat ? (lowY + highY) / 2 : 0)) * scale);
  const depth = near.map((value) => value * scale);
  const cells = new Int32Array(width * height).fill(-1);
  const depths = new Float32Array(width * height).fill(-Infinity);
  const shades = new Float32Array(width * height).fill(1);
  if (places.triangles)
    fillTriangles(arrayOf(places.triangles), x, y, depth, cells, depths, shades, width, height, places.flat);
  else fillPoints(count, x, y, depth, cells, depths, width, height);
  return { width, height, cells, shades, overlay() {} };
}

function project(positions, count, turn) {
  const right = new Float32Array(count);
  const up = new Float32Array(count);
  const near = new Float32Array(count);
  if (!turn) {
    for (let node = 0; node < count; node += 1)
      [right[node], up[node]] = [positions[3 * node], positions[3 * node + 1]];
    return { right, up, near };
  }
  const centre = middleOf(positions, count);
  const [sinE, cosE] = [Math.sin(turn.east * DEGREES), Math.cos(turn.east * DEGREES)];
  const [sinN, cosN] = [Math.sin(turn.north * DEGREES), Math.cos(turn.north * DEGREES)];
  for (let node = 0; node < count; node += 1) {
    const [px, py, pz] = [0, 1, 2].map((axis) => positions[3 * node + axis] - centre[axis]);
    const forward = px * cosE + py * sinE;
    right[node] = -px * sinE + py * cosE;
    up[node] = pz * cosN - forward * sinN;
    near[node] = forward * cosN + pz * sinN;
  }
  return { right, up, near };
}

function middleOf(positions, count) {
  return [0, 1, 2].map((axis) => {
    let [low, high] = [Infinity, -Infinity];
    for (let node = 0; node < count; node += 1) {
      low = Math.min(low, positions[3 * node + axis]);
      high = Math.max(high, positions[3 * node + axis]);
    }
    return (low + high) / 2;
  });
}

function longestReach(positions, count) {
  const centre = middleOf(positions, count);
  let longest = 0;
  for (let node = 0; node < count; node += 1) {
    longest = Math.max(longest, Math.hypot(...[0, 1, 2].map((axis) => positions[3 * node + axis] - centre[axis])));
  }
  return longest || 1;
}

function extent(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  return [low, high];
}

function fillTriangles(corners, x, y, near, cells, depths, shades, width, height, isFlat) {
  for (let first = 0; first < corners.length; first += 3) {
    const [a, b, c] = [corners[first], corners[first + 1], corners[first + 2]];
    const area = (x[b] - x[a]) * (y[c] - y[a]) - (x[c] - x[a]) * (y[b] - y[a]);
    if (Math.abs(area) < 1e-6) continue;
    // Light falls from the viewer: a triangle that is seen from the side is darker.
    const alongX = ((near[b] - near[a]) * (y[c] - y[a]) - (near[c] - near[a]) * (y[b] - y[a])) / area;
    const alongY = ((x[b] - x[a]) * (near[c] - near[a]) - (x[c] - x[a]) * (near[b] - near[a])) / area;
    const shade = isFlat ? 1 : 0.68 + 0.32 / Math.hypot(1, alongX, alongY);
    const low = Math.max(0, Math.floor(Math.min(y[a], y[b], y[c])));
    const high = Math.min(height - 1, Math.ceil(Math.max(y[a], y[b], y[c])));
    const left = Math.max(0, Math.floor(Math.min(x[a], x[b], x[c])));
    const right = Math.min(width - 1, Math.ceil(Math.max(x[a], x[b], x[c])));
    for (let row = low; row <= high; row += 1) {
      for (let column = left; column <= right; column += 1) {
        const wb = ((column - x[a]) * (y[c] - y[a]) - (x[c] - x[a]) * (row - y[a])) / area;
        const wc = ((x[b] - x[a]) * (row - y[a]) - (column - x[a]) * (y[b] - y[a])) / area;
        const wa = 1 - wb - wc;
        if (wa < -0.001 || wb < -0.001 || wc < -0.001) continue;
        const depth = wa * near[a] + wb * near[b] + wc * near[c];
        const place = row * width + column;
        if (depth <= depths[place]) continue;
        depths[place] = depth;
        shades[place] = shade;
        // The nearest corner: a mean of two experts would look like a third.
        cells[place] = wa >= wb && wa >= wc ? a : wb >= wc ? b : c;
      }
    }
  }
}

// Radius of a point as a share of the width of all: wide enough that the points of a sphere, half of which are seen,
// leave no gaps.
function pointShare(count) {
  return 1.05 * Math.sqrt(2 / Math.max(1, count));
}

function fillPoints(count, x, y, near, cells, depths, width, height) {
  const [lowX, highX] = extent(x);
  const [lowY, highY] = extent(y);
  const radius = Math.max(1, pointShare(count) * Math.sqrt((highX - lowX) * (highY - lowY)));
  for (let node = 0; node < count; node += 1) {
    const [low, high] = [Math.max(0, Math.floor(y[node] - radius)), Math.min(height - 1, Math.ceil(y[node] + radius))];
    const [left, right] = [Math.max(0, Math.floor(x[node] - radius)), Math.min(width - 1, Math.ceil(x[node] + radius))];
    for (let row = low; row <= high; row += 1) {
      for (let column = left; column <= right; column += 1) {
        const distance = (row - y[node]) ** 2 + (column - x[node]) ** 2;
        if (distance > radius * radius) continue;
        const place = row * width + column;
        // The middle of a point is nearer than its rim, so that neighbours meet half-way.
        const depth = near[node] - distance / radius;
        if (depth <= depths[place]) continue;
        depths[place] = depth;
        cells[place] = node;
      }
    }
  }
}
