// Where each pixel of the data is on the canvas. Every view fills `cells`: for each dot of the canvas, the number of
// the pixel that is shown there, or -1.

const DEGREES = Math.PI / 180;

// Whatever the kind, a view is { width, height, cells, frame: { left, top }, overlay(context, ink) }.
function makeView(places, width, turn) {
  if (places.kind === "globe") return turn.isRound ? roundGlobe(places, width, turn) : mollweide(places, width);
  if (places.kind === "mesh") return meshView(places, width, turn);
  return mapView(places, width, turn);
}

function nearestTable(values, low, high, count, period) {
  const table = new Int32Array(count + 1);
  for (let step = 0; step <= count; step += 1) {
    const wanted = low + ((high - low) * step) / count;
    let best = 0;
    let least = Infinity;
    for (let index = 0; index < values.length; index += 1) {
      let distance = Math.abs(values[index] - wanted);
      if (period) distance = Math.min(distance % period, period - (distance % period));
      if (distance < least) [best, least] = [index, distance];
    }
    table[step] = best;
  }
  return table;
}

// Row and column of any place of the globe, by tables of a tenth of a degree.
function globeLookup(places) {
  places.lookup ||= {
    rows: nearestTable(arrayOf(places.rows.values), -90, 90, 1800, 0),
    columns: nearestTable(arrayOf(places.columns.values), -180, 180, 3600, 360),
  };
  const { rows, columns } = places.lookup;
  const numColumns = places.shape[1];
  return (latitude, longitude) =>
    rows[Math.round((latitude + 90) * 10)] * numColumns + columns[Math.round((longitude + 180) * 10)];
}

// Mollweide's equal-area map, Greenwich in the middle.
function mollweide(places, width) {
  const height = Math.round(width / 2);
  const cells = new Int32Array(width * height).fill(-1);
  const cellAt = globeLookup(places);
  for (let y = 0; y < height; y += 1) {
    const sine = 1 - (2 * (y + 0.5)) / height;
    const angle = Math.asin(sine);
    const latitude = Math.asin(Math.max(-1, Math.min(1, (2 * angle + Math.sin(2 * angle)) / Math.PI))) / DEGREES;
    const reach = Math.cos(angle);
    for (let x = 0; x < width; x += 1) {
      const longitude = (((2 * (x + 0.5)) / width - 1) / reach) * 180;
      if (longitude >= -180 && longitude <= 180) cells[y * width + x] = cellAt(latitude, longitude);
    }
  }
  const toCanvas = (longitude, latitude) => {
    const wanted = Math.PI * Math.sin(latitude * DEGREES);
    let angle = latitude * DEGREES * 0.9;
    for (let step = 0; step < 8; step += 1) {
      const slope = 2 + 2 * Math.cos(2 * angle);
      if (slope < 1e-9) break;
      angle -= (2 * angle + Math.sin(2 * angle) - wanted) / slope;
    }
    if (Math.abs(latitude) > 89.99) angle = Math.sign(latitude) * (Math.PI / 2);
    return [((longitude / 180) * Math.cos(angle) + 1) * (width / 2), (1 - Math.sin(angle)) * (height / 2)];
  };
  return {
    width,
    height,
    cells,
    overlay(context, ink) {
      drawCoast(context, ink, toCanvas, width / 3);
      context.beginPath();
      context.ellipse(width / 2, height / 2, width / 2 - 1, height / 2 - 1, 0, 0, 2 * Math.PI);
      context.stroke();
    },
  };
}

// The globe from outside, the place at `turn.east`, `turn.north` in the middle.
function roundGlobe(places, width, turn) {
  const size = Math.min(width, 460 * devicePixelRatio);
  const left = (width - size) / 2;
  const cells = new Int32Array(width * size).fill(-1);
  const cellAt = globeLookup(places);
  const [sine, cosine] = [Math.sin(turn.north * DEGREES), Math.cos(turn.north * DEGREES)];
  const radius = size / 2 - 1;
  for (let y = 0; y < size; y += 1) {
    const up = (size / 2 - y - 0.5) / radius;
    for (let x = Math.floor(left); x < left + size; x += 1) {
      const right = (x + 0.5 - left - size / 2) / radius;
      const rest = 1 - up * up - right * right;
      if (rest < 0) continue;
      const near = Math.sqrt(rest);
      const latitude = Math.asin(Math.max(-1, Math.min(1, up * cosine + near * sine))) / DEGREES;
      const longitude = wrap(turn.east + Math.atan2(right, near * cosine - up * sine) / DEGREES);
      cells[y * width + x] = cellAt(latitude, longitude);
    }
  }
  const toCanvas = (longitude, latitude) => {
    const [phi, lambda] = [latitude * DEGREES, (longitude - turn.east) * DEGREES];
    const near = Math.sin(phi) * sine + Math.cos(phi) * cosine * Math.cos(lambda);
    if (near < 0) return null;
    return [
      left + size / 2 + radius * Math.cos(phi) * Math.sin(lambda),
      size / 2 - radius * (Math.sin(phi) * cosine - Math.cos(phi) * sine * Math.cos(lambda)),
    ];
  };
  return {
    width,
    height: size,
    cells,
    overlay(context, ink) {
      drawCoast(context, ink, toCanvas, size / 3);
      context.beginPath();
      context.arc(left + size / 2, size / 2, radius, 0, 2 * Math.PI);
      context.stroke();
    },
  };
}

function wrap(longitude) {
  return ((((longitude + 180) % 360) + 360) % 360) - 180;
}

function drawCoast(context, ink, toCanvas, longest) {
  const coast = PAGE.coastlines;
  if (!coast) return;
  const points = arrayOf(coast.points);
  let index = 0;
  context.strokeStyle = ink;
  context.lineWidth = devicePixelRatio;
  context.globalAlpha = 0.75;
  context.beginPath();
  for (const end of arrayOf(coast.ends)) {
    let before = null;
    for (; index < end; index += 1) {
      const place = toCanvas(points[2 * index] / 100, points[2 * index + 1] / 100);
      // No line across the whole map where a coast crosses its edge.
      if (place && before && Math.hypot(place[0] - before[0], place[1] - before[1]) < longest) context.lineTo(...place);
      else if (place) context.moveTo(...place);
      before = place;
    }
  }
  context.stroke();
  context.globalAlpha = 1;
}

// Rows and columns: a map, a slice of a volume, or a line in rows. Coordinates stand at the left and below.
function mapView(places, width, turn) {
  const flat = flatten(places, turn);
  const ratio = devicePixelRatio;
  const hasAxes = flat.isMap && places.rows && places.columns && !places.rows.perPixel;
  const margin = hasAxes ? { left: 50 * ratio, bottom: 26 * ratio } : { left: 0, bottom: 0 };
  const aspect = flat.aspect;
  let inner = width - margin.left;
  const highest = Math.max(240, Math.min(560, innerHeight * 0.7)) * ratio;
  if ((inner * flat.rows * aspect) / flat.columns > highest) inner = (highest * flat.columns) / (flat.rows * aspect);
  inner = Math.max(1, Math.round(inner));
  const tall = Math.max(1, Math.round((inner * flat.rows * aspect) / flat.columns));
  const height = tall + margin.bottom;
  const cells = new Int32Array(width * height).fill(-1);
  for (let y = 0; y < tall; y += 1) {
    const drawn = Math.floor((y * flat.rows) / tall);
    const row = places.up ? flat.rows - 1 - drawn : drawn;
    for (let x = 0; x < inner; x += 1) {
      const cell = flat.cell(row, Math.floor((x * flat.columns) / inner));
      cells[y * width + x + margin.left] = cell;
    }
  }
  return {
    width,
    height,
    cells,
    overlay(context, ink) {
      if (hasAxes) drawAxes(context, ink, places, { left: margin.left, inner, tall, ratio });
      context.strokeStyle = ink;
      context.lineWidth = ratio;
      context.globalAlpha = 0.5;
      context.strokeRect(margin.left + 0.5, 0.5, inner - 1, tall - 1);
      context.globalAlpha = 1;
    },
  };
}

function flatten(places, turn) {
  const shape = places.shape;
  if (shape.length === 1) {
    const columns = Math.min(shape[0], Math.max(16, 2 ** Math.round(Math.log2(Math.sqrt(shape[0] * 2)))));
    return {
      rows: Math.ceil(shape[0] / columns),
      columns,
      aspect: 1,
      isMap: false,
      cell: (row, column) => (row * columns + column < shape[0] ? row * columns + column : -1),
    };
  }
  if (shape.length === 3) {
    const [rowAxis, columnAxis] = [0, 1, 2].filter((axis) => axis !== turn.axis);
    const strides = [shape[1] * shape[2], shape[2], 1];
    return {
      rows: shape[rowAxis],
      columns: shape[columnAxis],
      aspect: 1,
      isMap: false,
      cell: (row, column) => turn.slice * strides[turn.axis] + row * strides[rowAxis] + column * strides[columnAxis],
    };
  }
  let aspect = 1;
  if (places.rows && places.columns && !places.rows.perPixel) {
    const [rows, columns] = [arrayOf(places.rows.values), arrayOf(places.columns.values)];
    const step = (values) => Math.abs(values[values.length - 1] - values[0]) / Math.max(1, values.length - 1);
    const middle = places.geographic ? Math.cos(((rows[0] + rows[rows.length - 1]) / 2) * DEGREES) : 1;
    const isAlike = places.geographic || places.rows.units === places.columns.units;
    if (isAlike && step(rows) && step(columns))
      aspect = Math.max(0.25, Math.min(4, step(rows) / (step(columns) * middle)));
  }
  return { rows: shape[0], columns: shape[1], aspect, isMap: true, cell: (row, column) => row * shape[1] + column };
}

function drawAxes(context, ink, places, { left, inner, tall, ratio }) {
  const [rows, columns] = [arrayOf(places.rows.values), arrayOf(places.columns.values)];
  const edges = (values) => {
    const half = (values[values.length - 1] - values[0]) / Math.max(1, values.length - 1) / 2;
    return [values[0] - half, values[values.length - 1] + half];
  };
  const [west, east] = edges(columns);
  const [first, last] = edges(rows);
  const toX = (value) => left + ((value - west) / (east - west || 1)) * inner;
  const toY = (value) =>
    (places.up ? 1 - (value - first) / (last - first || 1) : (value - first) / (last - first || 1)) * tall;
  if (places.geographic && PAGE.coastlines) {
    context.save();
    context.beginPath();
    context.rect(left, 0, inner, tall);
    context.clip();
    const shift = (longitude) =>
      longitude < west - 1 ? longitude + 360 : longitude > east + 1 ? longitude - 360 : longitude;
    drawCoast(context, ink, (longitude, latitude) => [toX(shift(longitude)), toY(latitude)], inner / 2);
    context.restore();
  }
  context.fillStyle = ink;
  context.font = `${11 * ratio}px system-ui, sans-serif`;
  context.textBaseline = "middle";
  context.textAlign = "right";
  const [low, high] = [Math.min(first, last), Math.max(first, last)];
  for (const tick of ticks(low, high, 5))
    context.fillText(degrees(tick, places.rows, places), left - 5 * ratio, toY(tick));
  context.textBaseline = "top";
  context.textAlign = "center";
  for (const tick of ticks(west, east, Math.max(2, inner / (90 * ratio)))) {
    context.fillText(degrees(tick, places.columns, places), toX(tick), tall + 5 * ratio);
  }
}

// A coordinate as a reader writes it: 45°N, or a number with its units.
function degrees(value, axis, places) {
  const size = Number(Math.abs(value).toPrecision(5));
  if (!places.geographic) return `${tickText(value)}`;
  if (axis === places.rows) return `${size}°${value > 0 ? "N" : value < 0 ? "S" : ""}`;
  const around = Number(wrap(value).toPrecision(5));
  return `${Math.abs(around)}°${around > 0 ? "E" : around < 0 ? "W" : ""}`;
}

function describePlace(places, cell) {
  if (places.kind === "mesh") {
    const at = arrayOf(places.coordinates).slice(3 * cell, 3 * cell + (places.flat ? 2 : 3));
    return `node ${cell} at ${Array.from(at, (value) => format(Number(value.toPrecision(4)))).join(", ")}`;
  }
  const step = places.step;
  const shape = places.shape;
  if (shape.length === 1) return `pixel ${cell * step}`;
  if (shape.length === 3) {
    const indices = [Math.floor(cell / (shape[1] * shape[2])), Math.floor(cell / shape[2]) % shape[1], cell % shape[2]];
    return `voxel ${indices.map((index) => index * step).join(", ")}`;
  }
  const [row, column] = [Math.floor(cell / shape[1]), cell % shape[1]];
  const numbers = `row ${row * step}, column ${column * step}`;
  if (!places.rows || !places.columns) return numbers;
  const at = (axis, index) => arrayOf(axis.values)[axis.perPixel ? cell : index];
  if (places.geographic) {
    const north = degrees(at(places.rows, row), places.rows, places);
    return `${north} ${degrees(at(places.columns, column), places.columns, places)} (${numbers})`;
  }
  const named = (axis, index) => `${axis.name} ${format(at(axis, index))}${axis.units ? ` ${axis.units}` : ""}`;
  return `${named(places.rows, row)}, ${named(places.columns, column)} (${numbers})`;
}
