// The routing of one run, or of several side by side: sliders over layers and experts, and what depends on them.

class RoutingPanel {
  constructor(parent, runs, { use, filters } = {}) {
    this.runs = runs;
    // Where one expert is selected, the first choice is all there is, and has the colours of the experts.
    const isSingle = runs.every((run) => run.gates.every((gate) => gate.numSelected === 1));
    this.state = { gate: 0, mode: isSingle ? "first" : "all", expert: 0, image: -1 };
    this.parent = parent;
    const numGates = Math.max(...runs.map((run) => run.gates.length));
    const modes = [
      ...(isSingle ? [] : [["all", "All choices: like colours share experts"]]),
      ["first", isSingle ? "Expert of each pixel" : "First choice of each pixel"],
      ["one", "One expert"],
    ];
    if (runs.some((run) => run.gates.some((gate) => gate.regions))) modes.push(["regions", "Known regions"]);
    this.mode = choice(modes, (mode) => this.change({ mode }));
    this.layer = slider("Layer", {
      max: numGates - 1,
      words: (gate) => this.layerName(gate),
      onChange: (gate) => this.change({ gate }),
    });
    this.expert = slider("Expert", {
      max: this.gateOf(runs[0]).numExperts - 1,
      words: (expert) => `expert ${expert}`,
      onChange: (expert) => this.change({ expert, mode: "one" }),
    });
    this.pictures = [];
    const grid = element("div", { class: runs.length > 1 ? "side-by-side" : "" });
    for (const run of runs) {
      const figure = element("figure", { class: "routing" });
      const caption = element("figcaption", {});
      if (runs.length > 1) figure.append(element("strong", {}, run.label));
      const picture = new FieldPicture(figure, runs.length > 1 ? `Routing of ${run.label}` : "Routing");
      const legend = element("div", { class: "legend" });
      figure.append(legend, caption);
      grid.append(figure);
      this.pictures.push({ run, picture, caption, legend });
    }
    const fields = this.pictures.map(({ picture }) => picture);
    const controls = element(
      "div",
      { class: "controls" },
      this.layer.control,
      labelled("Show", this.mode),
      this.expert.control,
    );
    controls.append(...placeControls(this.gateOf(runs[0]).places, fields));
    const classes = runs[0].classes;
    if (classes) {
      const options = [["-1", "no image"], ...classes.names.map((name, number) => [String(number), name])];
      controls.append(
        labelled(
          "Over the mean image of",
          choice(options, (value) => this.change({ image: Number(value) })),
        ),
      );
    }
    this.layer.control.hidden = numGates < 2;
    parent.append(controls, grid);
    if (use) this.use = new BarChart(use, (expert) => this.change({ expert, mode: "one" }));
    this.filters = filters;
    this.change({});
  }

  gateOf(run) {
    return run.gates[Math.min(this.state.gate, run.gates.length - 1)];
  }

  layerName(number) {
    const gate = this.runs[0].gates[Math.min(number, this.runs[0].gates.length - 1)];
    const names = gate.layers;
    return `${number + 1}: ${names.length > 1 ? `${names[0]} to ${names[names.length - 1]}` : names[0]}`;
  }

  change(changes) {
    Object.assign(this.state, changes);
    const gate = this.gateOf(this.runs[0]);
    this.state.expert = Math.min(this.state.expert, gate.numExperts - 1);
    this.expert.input.max = gate.numExperts - 1;
    this.expert.input.value = this.state.expert;
    this.expert.update();
    this.mode.value = this.state.mode;
    for (const shown of this.pictures) this.showPicture(shown);
    this.showUse(gate);
    if (this.filters)
      showFilters(this.filters, this.runs[0], gate, this.state, (expert) => this.change({ expert, mode: "one" }));
  }

  showPicture({ run, picture, caption, legend }) {
    const gate = this.gateOf(run);
    const numPixels = gate.places.shape.reduce((product, size) => product * size, 1);
    const expert = this.ownExpert(gate);
    picture.setPlaces(gate.places);
    const { colours, entries, words } = this.colour(run, gate, expert, numPixels);
    picture.show(
      colours,
      (cell) => [describePlace(gate.places, cell), ...describeExperts(gate, cell, numPixels)],
      words,
    );
    legend.replaceChildren(...entries);
    const served = gate.layers.length > 1 ? `${gate.layers.length} layers` : gate.layers[0];
    const parts = [
      `${gate.numSelected} of ${gate.numExperts} experts at each pixel, ${gate.kind} of ${served}, rule ${gate.rule}`,
    ];
    if (gate.shared !== null && this.runs.length > 1)
      parts.push(`${percent(gate.shared)} % of the choices as in ${this.runs[0].label}`);
    if (gate.ofSample) parts.push("the gate depends on its input: choices for the first sample");
    if (gate.places.step > 1) parts.push(`one of every ${gate.places.step} rows and columns is shown`);
    caption.replaceChildren(...parts.map((part) => element("div", {}, part)));
  }

  // The expert of a run that serves the pixels of the chosen expert of the first run.
  ownExpert(gate) {
    const found = gate.partners ? gate.partners.indexOf(this.state.expert) : this.state.expert;
    return found < 0 ? Math.min(this.state.expert, gate.numExperts - 1) : found;
  }

  colour(run, gate, expert, numPixels) {
    const { mode } = this.state;
    const colours = new Uint8ClampedArray(3 * numPixels);
    const own = (number) => expertColour(gate.partners?.[number] ?? number);
    let entries = [];
    let words = "Like colours share experts.";
    if (mode === "regions" && gate.regions) {
      const regions = arrayOf(gate.regions);
      const regionColour = (region) => own(gate.regionColours[region]);
      for (let pixel = 0; pixel < numPixels; pixel += 1) colours.set(regionColour(regions[pixel]), 3 * pixel);
      entries = [...new Set(regions)]
        .sort((a, b) => a - b)
        .map((region) => swatch(regionColour(region), `region ${region}`));
      words = "Known regions, in the colours of the experts that serve most of them.";
    } else if (mode === "first") {
      const best = arrayOf(gate.best);
      for (let pixel = 0; pixel < numPixels; pixel += 1) colours.set(own(best[pixel]), 3 * pixel);
      const used = [...new Set(best.subarray(0, numPixels))].sort((a, b) => a - b);
      entries =
        used.length <= 12
          ? used.map((number) => swatch(own(number), `expert ${number}`))
          : [element("span", {}, `${used.length} of ${gate.numExperts} experts are the first choice of a pixel`)];
      words = `First choices: ${used.length} experts.`;
    } else if (mode === "one") {
      const bits = arrayOf(gate.selected);
      for (let pixel = 0; pixel < numPixels; pixel += 1) {
        colours.set(isSelected(bits, expert, pixel, numPixels) ? own(expert) : [196, 200, 206], 3 * pixel);
      }
      entries = [
        swatch(own(expert), `expert ${expert} serves ${percent(gate.use[expert])} %`),
        swatch([196, 200, 206], "others"),
      ];
      words = `Expert ${expert} serves ${percent(gate.use[expert])} percent.`;
    } else {
      colours.set(arrayOf(gate.colours));
      entries = [element("span", {}, "Pixels with like colours share experts.")];
    }
    if (this.state.image >= 0 && run.classes) darken(colours, gate.places.shape, run.classes, this.state.image);
    return { colours, entries, words };
  }

  showUse(gate) {
    if (!this.use) return;
    const bars = gate.use.map((share, expert) => ({ share, expert })).sort((a, b) => b.share - a.share);
    const inUse = bars.filter((bar) => bar.share > 0).length;
    this.use.show({
      title: `Use of each expert: ${inUse} of ${gate.numExperts} are in use`,
      bars,
      chosen: this.state.mode === "one" ? this.state.expert : -1,
      colours: (expert) => expertColour(gate.partners ? gate.partners[expert] : expert),
      even: gate.numSelected / gate.numExperts,
    });
    const note = this.use.box.parentElement.querySelector(".use-note");
    note.textContent =
      `${inUse} of ${gate.numExperts} experts are in use. The dashed line is the use if all were used alike. ` +
      "Choose a bar to see its pixels.";
  }
}

function describeExperts(gate, cell, numPixels) {
  const best = arrayOf(gate.best);
  const scores = numbersCache(gate.scores);
  const lines = [];
  for (let rank = 0; rank < gate.numScored; rank += 1) {
    const place = rank * numPixels + cell;
    lines.push(`expert ${best[place]}: score ${format(Number(scores[place].toPrecision(3)))}`);
  }
  if (gate.numSelected > gate.numScored) lines.push(`and ${gate.numSelected - gate.numScored} more`);
  if (gate.regions) lines.push(`known region ${arrayOf(gate.regions)[cell]}`);
  return lines;
}

const cachedNumbers = new Map();

function numbersCache(reference) {
  if (!cachedNumbers.has(reference)) cachedNumbers.set(reference, numbersOf(reference));
  return cachedNumbers.get(reference);
}

// Colours as bright as the mean image of a class, whatever the grid of the layer.
function darken(colours, shape, classes, number) {
  const [rows, columns] = classes.shape;
  const image = arrayOf(classes.images).subarray(number * rows * columns, (number + 1) * rows * columns);
  for (let row = 0; row < shape[0]; row += 1) {
    for (let column = 0; column < shape[1]; column += 1) {
      const place =
        Math.floor(((row + 0.5) * rows) / shape[0]) * columns + Math.floor(((column + 0.5) * columns) / shape[1]);
      const brightness = 0.25 + (0.75 * image[place]) / 255;
      for (let part = 0; part < 3; part += 1) colours[3 * (row * shape[1] + column) + part] *= brightness;
    }
  }
}

// Small pictures of filters; blue is positive, orange negative, white zero.
function showFilters(parent, run, gate, state, onChoose) {
  parent.replaceChildren();
  if (!gate.filters) {
    parent.append(element("p", { class: "note" }, "The experts of this layer have no filters to draw."));
    return;
  }
  const all = gate.filters.experts
    .flatMap((one) => one.pictures.flat(2))
    .concat(run.knownFilters.flatMap((one) => one.pictures.flat(2)));
  const largest = Math.max(...all.map(Math.abs), 1e-12);
  const cards = element("div", { class: "cards" });
  for (const known of run.knownFilters) cards.append(filterCard(known.name, known, largest, null));
  for (const one of gate.filters.experts) {
    const share = `${percent(gate.use[one.expert])} %`;
    const isChosen = state.mode === "one" && state.expert === one.expert;
    cards.append(
      filterCard(`expert ${one.expert}: ${share}`, one, largest, { isChosen, choose: () => onChoose(one.expert) }),
    );
  }
  const shown = gate.filters.experts[0]?.pictures.length ?? 0;
  const some =
    shown < gate.filters.numFilters
      ? ` Each expert has ${gate.filters.numFilters} filters: the ${shown} with the largest weights are shown.`
      : "";
  parent.append(
    cards,
    element(
      "p",
      { class: "note" },
      `The most used experts of ${gate.layers[0]}, with the share of the pixels that each serves. Blue is positive, orange negative, white zero; all have one ` +
        `scale, up to ${format(largest)}.${some}`,
    ),
  );
}

function filterCard(title, filters, largest, choosing) {
  const head = choosing
    ? element(
        "button",
        { type: "button", "aria-pressed": choosing.isChosen ? "true" : "false", onclick: choosing.choose },
        title,
      )
    : element("strong", {}, `${title} (true)`);
  const card = element("div", { class: "card" }, head);
  const row = element("div", { class: "filters" });
  filters.pictures.forEach((picture, number) =>
    row.append(filterPicture(picture, filters.labels[number], title, largest)),
  );
  card.append(row);
  return card;
}

function filterPicture(picture, label, title, largest) {
  const [rows, columns] = [picture.length, picture[0].length];
  const size = Math.max(6, Math.min(22, Math.floor(132 / columns)));
  const words = picture.map((row) => row.map(format).join(" ")).join("; ");
  const svg = element("svg", {
    width: columns * size,
    height: rows * size,
    role: "img",
    "aria-label": `Filter ${label} of ${title}: ${words}`,
  });
  picture.forEach((row, y) =>
    row.forEach((value, x) => {
      const cell = element("rect", {
        x: x * size,
        y: y * size,
        width: size,
        height: size,
        fill: css(ramp(DIVERGING, 0.5 + value / (2 * largest))),
      });
      cell.addEventListener("pointermove", (event) =>
        showTip(
          [`${title}${label ? `, ${label}` : ""}`, `row ${y}, column ${x}: ${format(value)}`],
          event.clientX,
          event.clientY,
        ),
      );
      svg.append(cell);
    }),
  );
  svg.addEventListener("pointerleave", hideTip);
  return element("figure", { class: "filter" }, svg, label ? element("figcaption", {}, label) : null);
}
