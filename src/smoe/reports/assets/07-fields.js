// A picture of pixels that are coloured and can be asked: by the pointer, by touch, and by arrow keys.

class FieldPicture {
  // describe(cell) returns lines of text; the first one is the place.
  constructor(parent, label) {
    this.label = label;
    this.turn = { isRound: false, east: 0, north: 20, axis: 0, slice: 0 };
    this.box = element("div", { class: "field" });
    this.canvas = element("canvas", { tabindex: 0, role: "img", "aria-label": label });
    this.box.append(this.canvas);
    parent.append(this.box);
    this.cursor = null;
    watchWidth(this.box, () => this.lay());
    this.listen();
    PICTURES.add(this);
  }

  setPlaces(places) {
    if (this.places === places) return;
    this.places = places;
    this.cursor = null;
    if (places.shape.length === 3 && places.kind === "grid")
      this.turn.slice = Math.floor(places.shape[this.turn.axis] / 2);
    this.view = null;
  }

  // colours: (P * 3) bytes; describe as above; words describe the whole picture.
  show(colours, describe, words) {
    Object.assign(this, { colours, describe });
    this.canvas.setAttribute("aria-label", `${this.label}. ${words} Arrow keys move over the pixels.`);
    if (this.view) this.paint();
    else this.lay();
  }

  lay() {
    const width = Math.floor(Math.min(this.box.clientWidth, 760) * devicePixelRatio);
    if (!this.places || !this.colours || width < 20) return;
    this.view = makeView(this.places, width, this.turn);
    this.canvas.width = this.view.width;
    this.canvas.height = this.view.height;
    this.canvas.style.width = `${this.view.width / devicePixelRatio}px`;
    this.paint();
  }

  paint() {
    const { width, height, cells, shades } = this.view;
    const context = this.canvas.getContext("2d");
    const image = context.createImageData(width, height);
    const { data } = image;
    for (let dot = 0; dot < cells.length; dot += 1) {
      const cell = cells[dot];
      if (cell < 0) continue;
      const shade = shades ? shades[dot] : 1;
      data[4 * dot] = this.colours[3 * cell] * shade;
      data[4 * dot + 1] = this.colours[3 * cell + 1] * shade;
      data[4 * dot + 2] = this.colours[3 * cell + 2] * shade;
      data[4 * dot + 3] = 255;
    }
    context.putImageData(image, 0, 0);
    const isOnWhite = this.places.kind === "globe" || document.documentElement.dataset.printing;
    const ink = isOnWhite ? "#000" : getComputedStyle(this.box).color;
    context.strokeStyle = ink;
    this.view.overlay(context, ink);
    if (this.cursor) this.drawCursor(context);
  }

  drawCursor(context) {
    const [x, y] = this.cursor;
    const reach = 7 * devicePixelRatio;
    for (const [style, wide] of [
      ["#fff", 4],
      ["#000", 2],
    ]) {
      context.strokeStyle = style;
      context.lineWidth = wide * devicePixelRatio;
      context.beginPath();
      context.arc(x, y, reach, 0, 2 * Math.PI);
      context.stroke();
    }
  }

  cellAt(x, y) {
    if (!this.view || x < 0 || y < 0 || x >= this.view.width || y >= this.view.height) return -1;
    return this.view.cells[Math.floor(y) * this.view.width + Math.floor(x)];
  }

  listen() {
    let held = null;
    const toCanvas = (event) => {
      const box = this.canvas.getBoundingClientRect();
      const ratio = this.view ? this.view.width / box.width : 1;
      return [(event.clientX - box.left) * ratio, (event.clientY - box.top) * ratio];
    };
    this.canvas.addEventListener("pointerdown", (event) => {
      if (!this.canTurn()) return;
      held = [event.clientX, event.clientY, this.turn.east, this.turn.north];
      this.canvas.setPointerCapture(event.pointerId);
    });
    this.canvas.addEventListener("pointerup", () => {
      held = null;
    });
    this.canvas.addEventListener("pointermove", (event) => {
      if (held) {
        hideTip();
        this.turn.east = wrap(held[2] - (event.clientX - held[0]) * 0.5);
        this.turn.north = Math.max(-90, Math.min(90, held[3] + (event.clientY - held[1]) * 0.5));
        this.onTurn?.();
        this.lay();
        return;
      }
      const cell = this.cellAt(...toCanvas(event));
      if (cell < 0) hideTip();
      else showTip(this.describe(cell), event.clientX, event.clientY);
    });
    this.canvas.addEventListener("pointerleave", hideTip);
    this.canvas.addEventListener("blur", () => {
      this.cursor = null;
      hideTip();
      if (this.view) this.paint();
    });
    this.canvas.addEventListener("keydown", (event) => this.moveCursor(event));
  }

  canTurn() {
    return (
      this.places &&
      ((this.places.kind === "globe" && this.turn.isRound) || (this.places.kind === "mesh" && !this.places.flat))
    );
  }

  // One step of the cursor is to the next pixel of the data in that direction.
  moveCursor(event) {
    const direction = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[event.key];
    if (!direction || !this.view) return;
    event.preventDefault();
    const start = this.cursor ?? this.middle();
    const before = this.cellAt(...start);
    let [x, y] = start;
    let found = this.cursor ? null : start;
    while (!found) {
      [x, y] = [x + direction[0], y + direction[1]];
      if (x < 0 || y < 0 || x >= this.view.width || y >= this.view.height) break;
      const cell = this.cellAt(x, y);
      if (cell >= 0 && cell !== before) found = this.centre(x, y, cell, direction);
    }
    this.cursor = found ?? start;
    this.paint();
    const lines = this.describe(this.cellAt(...this.cursor));
    const box = this.canvas.getBoundingClientRect();
    const ratio = box.width / this.view.width;
    showTip(lines, box.left + this.cursor[0] * ratio, box.top + this.cursor[1] * ratio);
    announce(lines.join(", "));
  }

  // From the rim of a pixel to its middle, along the direction of the step.
  centre(x, y, cell, [right, down]) {
    let length = 0;
    while (this.cellAt(x + right * (length + 1), y + down * (length + 1)) === cell) length += 1;
    return [x + Math.floor((right * length) / 2), y + Math.floor((down * length) / 2)];
  }

  middle() {
    const { width, height, cells } = this.view;
    const wanted = [Math.floor(width / 2), Math.floor(height / 2)];
    if (cells[wanted[1] * width + wanted[0]] >= 0) return wanted;
    const first = cells.findIndex((cell) => cell >= 0);
    return [first % width, Math.floor(first / width)];
  }
}

// Controls that a kind of places needs: turning a body, choosing a slice of a volume.
function placeControls(places, pictures) {
  const controls = [];
  const each = (change) => {
    for (const picture of pictures) {
      change(picture.turn, picture);
      picture.lay();
    }
  };
  const turning = () => {
    const east = slider("Turn", {
      min: -180,
      max: 180,
      value: 0,
      words: (value) => `${value}°`,
      onChange: (value) =>
        each((turn) => {
          turn.east = value;
        }),
    });
    const north = slider("Tilt", {
      min: -90,
      max: 90,
      value: 20,
      words: (value) => `${value}°`,
      onChange: (value) =>
        each((turn) => {
          turn.north = value;
        }),
    });
    for (const picture of pictures) {
      picture.onTurn = () => {
        [east.input.value, north.input.value] = [Math.round(picture.turn.east), Math.round(picture.turn.north)];
        east.update();
        north.update();
      };
    }
    return [east.control, north.control];
  };
  if (places.kind === "globe") {
    const turns = turning();
    const show = (isRound) =>
      turns.forEach((control) => {
        control.hidden = !isRound;
      });
    show(false);
    controls.push(
      labelled(
        "View",
        choice(
          [
            ["map", "Map of the whole globe"],
            ["round", "Globe to turn"],
          ],
          (value) => {
            show(value === "round");
            each((turn) => {
              turn.isRound = value === "round";
            });
          },
        ),
      ),
      ...turns,
    );
  } else if (places.kind === "mesh" && !places.flat) {
    controls.push(...turning());
  } else if (places.shape.length === 3) {
    const middle = Math.floor(places.shape[0] / 2);
    const slice = slider("Slice", {
      max: places.shape[0] - 1,
      value: middle,
      onChange: (value) =>
        each((turn) => {
          turn.slice = value;
        }),
    });
    controls.push(
      labelled(
        "Slices along",
        choice(
          [
            ["0", "first axis"],
            ["1", "second axis"],
            ["2", "third axis"],
          ],
          (value) => {
            const axis = Number(value);
            slice.input.max = places.shape[axis] - 1;
            slice.input.value = Math.floor(places.shape[axis] / 2);
            slice.update();
            each((turn) => Object.assign(turn, { axis, slice: Math.floor(places.shape[axis] / 2) }));
          },
        ),
      ),
      slice.control,
    );
  }
  return controls;
}
