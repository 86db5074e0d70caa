// The parts of a run's report that follow its numbers: curves, changes of the routing, errors.

// Keys of one score belong together: train/loss and validation/loss; accuracy and its parts.
function scoreGroups(values) {
  const groups = new Map();
  for (const key of Object.keys(values)) {
    if (key.startsWith("routing/") || key === "nonfinite_errors") continue;
    const base = key
      .replace(/^(train|validation)\//, "")
      .split("/")[0]
      .replace(/ of the plain net$/, "");
    if (!groups.has(base)) groups.set(base, []);
    groups.get(base).push(key);
  }
  return groups;
}

function seriesOf(run, keys, name = (key) => key) {
  return keys.map((key, number) => ({
    name: name(key),
    x: run.curves.epochs,
    y: run.curves.values[key],
    colour: CURVES[number % CURVES.length],
    dash: DASHES[Math.floor(number / CURVES.length) % DASHES.length],
  }));
}

function spansDecades(series) {
  const known = series.flatMap((one) => one.y).filter((value) => value !== null);
  return known.length > 1 && Math.min(...known) > 0 && Math.max(...known) / Math.min(...known) > 300;
}

// A chart with a choice of what it shows, a logarithmic axis, and its numbers as a table.
class ChosenChart {
  constructor(parent, caption, options, makeContent) {
    this.makeContent = makeContent;
    this.caption = caption;
    this.select = choice(
      options.map((option) => [option, option]),
      () => this.update(true),
    );
    this.log = element("input", { type: "checkbox", onchange: () => this.update(false) });
    const controls = element(
      "div",
      { class: "controls" },
      labelled("Show", this.select),
      labelled("Logarithmic axis", this.log),
    );
    parent.append(controls);
    this.chart = new LineChart(parent, caption);
    this.table = element("div");
    parent.append(this.table);
  }

  update(isNew) {
    const content = this.makeContent(this.select.value);
    if (isNew) this.log.checked = spansDecades(content.series);
    const title = `${this.caption}: ${this.select.value}`;
    this.chart.show({ title, isLog: this.log.checked, ...content });
    const epochs = [...new Set(content.series.flatMap((one) => one.x))].sort((a, b) => a - b);
    this.table.replaceChildren(
      numbersTable(title, ["epoch", ...content.series.map((one) => one.name)], () =>
        epochs.map((epoch) => [
          String(epoch),
          ...content.series.map((one) => format(one.y[one.x.indexOf(epoch)] ?? null)),
        ]),
      ),
    );
  }
}

function showCurves(parent, run) {
  const groups = scoreGroups(run.curves.values);
  const chart = new ChosenChart(parent, `Curves of ${run.label}`, [...groups.keys()], (base) => ({
    series: seriesOf(run, groups.get(base)),
    references: run.references.filter((one) => one.metric === base).map((one) => [one.name, one.value]),
  }));
  const watched = run.monitor.key.replace(/^validation\//, "").split("/")[0];
  if (groups.has(watched)) chart.select.value = watched;
  chart.update(true);
}

function showCurvesTogether(parent, runs) {
  const keys = [...new Set(runs.flatMap((run) => Object.keys(run.curves.values)))].filter(
    (key) => key !== "nonfinite_errors",
  );
  const chart = new ChosenChart(parent, "Curves of all runs", keys, (key) => ({
    series: runs.map((run, number) => ({
      name: run.label,
      x: run.curves.epochs,
      y: run.curves.values[key] ?? run.curves.epochs.map(() => null),
      colour: CURVES[number % CURVES.length],
      dash: DASHES[Math.floor(number / CURVES.length) % DASHES.length],
    })),
  }));
  if (keys.includes(runs[0].monitor.key)) chart.select.value = runs[0].monitor.key;
  chart.update(true);
}

const ROUTING_CHARTS = {
  "Choices that changed": ["routing/changed", "routing/changed_since_start", "routing/reordered"],
  "Use, certainty, information": [
    "routing/experts_in_use",
    "routing/certainty",
    "routing/region_information",
    "routing/damped",
  ],
  "Gain of the routing": ["routing/gain"],
};

function showRoutingEpochs(parent, run) {
  const known = (names) => names.filter((name) => name in run.curves.values);
  const options = Object.keys(ROUTING_CHARTS).filter((name) => known(ROUTING_CHARTS[name]).length);
  const chart = new ChosenChart(parent, `Routing of ${run.label} by epoch`, options, (name) => ({
    unit: " %",
    series: seriesOf(run, known(ROUTING_CHARTS[name]), (key) => key.replace("routing/", "").replaceAll("_", " ")).map(
      (one) => ({ ...one, y: one.y.map((value) => (value === null ? null : 100 * value)) }),
    ),
  }));
  chart.update(true);
}

// Errors at each pixel; with a plain net also the gain over it.
function showErrors(parent, run) {
  const options = run.errors.flatMap((error, number) => [
    [`${number} error`, error.name],
    ...(error.gain ? [[`${number} gain`, `${error.name}: gain over ${error.plainName}`]] : []),
  ]);
  const select = choice(options, () => update());
  const figure = element("figure", { class: "routing" });
  const picture = new FieldPicture(figure, `Errors of ${run.label}`);
  const legend = element("div");
  const caption = element("figcaption");
  figure.append(legend, caption);
  const controls = element(
    "div",
    { class: "controls" },
    labelled("Show", select),
    ...placeControls(run.errors[0].places, [picture]),
  );
  parent.append(controls, figure);
  const update = () => {
    const [number, what] = select.value.split(" ");
    const error = run.errors[Number(number)];
    const isGain = what === "gain";
    const values = numbersCache(isGain ? error.gain : error.values);
    const known = Float64Array.from(values.filter((value) => !Number.isNaN(value))).sort();
    const quantile = (share) => known[Math.min(known.length - 1, Math.floor(share * known.length))] ?? 0;
    // Some pixels far off must not make all others look the same.
    const reach = Math.max(Math.abs(quantile(0.02)), Math.abs(quantile(0.98)), 1e-12);
    const [low, high] = isGain ? [-reach, reach] : [quantile(0.01), quantile(0.99)];
    const stops = isGain ? DIVERGING : VIRIDIS;
    const colours = new Uint8ClampedArray(3 * values.length);
    values.forEach((value, cell) => {
      colours.set(
        Number.isNaN(value) ? [150, 150, 150] : ramp(stops, high > low ? (value - low) / (high - low) : 0.5),
        3 * cell,
      );
    });
    const units = isGain ? "%" : error.units;
    picture.setPlaces(error.places);
    const errors = numbersCache(error.values);
    const gains = error.gain ? numbersCache(error.gain) : null;
    picture.show(
      colours,
      (cell) => [
        describePlace(error.places, cell),
        `${error.name}: ${withUnits(errors[cell], error.units)}`,
        ...(gains ? [`gain over ${error.plainName}: ${format(Number(gains[cell].toPrecision(3)))} %`] : []),
      ],
      `From ${format(known[0])} to ${withUnits(known[known.length - 1], units)}.`,
    );
    legend.replaceChildren(colourBar(stops, low, high, units));
    const median = format(Number(quantile(0.5).toPrecision(3)));
    const better = known.filter((value) => value > 0).length;
    caption.textContent = isGain
      ? `Share of the error of ${error.plainName} that this run removes at each pixel, at least -100 %; blue is ` +
        `better. It is better at ${percent(better / known.length)} % of the pixels; the median gain is ${median} %.`
      : `Error at each pixel over all samples of the split; the median is ${withUnits(quantile(0.5), units)}, ` +
        `the largest ${withUnits(known[known.length - 1], units)}.`;
  };
  update();
}
