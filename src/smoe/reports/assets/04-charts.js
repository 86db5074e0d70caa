// Charts by epoch and bars, as SVG that is drawn anew when its width changes.

function watchWidth(box, draw) {
  let width = 0;
  new ResizeObserver(() => {
    const now = Math.floor(box.clientWidth);
    if (now && now !== width) {
      width = now;
      draw(width);
    }
  }).observe(box);
}

function ticks(low, high, count) {
  if (!(high > low)) return [low];
  const raw = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= raw * 0.999);
  const found = [];
  for (let tick = Math.ceil(low / step - 1e-9) * step; tick <= high + step * 1e-9; tick += step) {
    found.push(Math.abs(tick) < step * 1e-9 ? 0 : tick);
  }
  return found;
}

function logTicks(low, high) {
  const found = [];
  for (let power = Math.ceil(Math.log10(low) - 1e-9); power <= Math.log10(high) + 1e-9; power += 1)
    found.push(10 ** power);
  return found.length > 6 ? found.filter((_, number) => number % Math.ceil(found.length / 6) === 0) : found;
}

function tickText(value) {
  const size = Math.abs(value);
  if (value !== 0 && (size < 1e-3 || size >= 1e5))
    return value.toExponential(Number.isInteger(Math.log10(size)) ? 0 : 1);
  return String(Number(value.toPrecision(6)));
}

// series: [{ name, x: [...], y: [... or null], colour, dash }]; references: [[text, value]].
class LineChart {
  constructor(parent, title) {
    this.title = title;
    this.series = [];
    this.references = [];
    this.isLog = false;
    this.unit = "";
    this.box = element("div", { class: "chart" });
    this.legend = element("div", { class: "legend" });
    parent.append(this.box, this.legend);
    watchWidth(this.box, (width) => this.draw(width));
  }

  show({ title, series, references = [], isLog = false, unit = "" }) {
    Object.assign(this, { title, series, references, isLog, unit });
    this.legend.replaceChildren(...series.map((one) => this.legendEntry(one)));
    if (this.box.clientWidth) this.draw(Math.floor(this.box.clientWidth));
  }

  legendEntry(one) {
    const line = element(
      "svg",
      { width: 26, height: 10, "aria-hidden": "true" },
      element("line", {
        x1: 0,
        y1: 5,
        x2: 26,
        y2: 5,
        stroke: one.colour,
        "stroke-width": 2.5,
        "stroke-dasharray": one.dash,
      }),
    );
    return element("span", { class: "legend-entry" }, line, one.name);
  }

  draw(width) {
    const height = Math.round(Math.max(220, Math.min(340, width * 0.5)));
    const points = this.series
      .flatMap((one) => one.x.map((x, index) => [x, one.y[index]]))
      .filter(([x, y]) => x !== null && y !== null && (!this.isLog || y > 0));
    const kept = document.activeElement === this.svg;
    this.box.replaceChildren();
    if (!points.length) {
      this.box.append(element("p", { class: "note" }, "There are no numbers to draw."));
      return;
    }
    const margin = { left: 62, right: 14, top: 12, bottom: 36 };
    const xs = points.map(([x]) => x);
    const ys = points.map(([, y]) => y);
    for (const [, value] of this.references) if (!this.isLog || value > 0) ys.push(value);
    const [xLow, xHigh] = [Math.min(...xs), Math.max(...xs)];
    let [yLow, yHigh] = [Math.min(...ys), Math.max(...ys)];
    if (this.isLog) {
      [yLow, yHigh] = [yLow / 1.3, yHigh * 1.3];
    } else {
      const room = (yHigh - yLow || Math.abs(yHigh) || 1) * 0.06;
      [yLow, yHigh] = [yLow - room, yHigh + room];
    }
    const reach = xHigh > xLow ? xHigh - xLow : 1;
    this.toX = (x) =>
      margin.left + ((x - xLow) / reach) * (width - margin.left - margin.right) * (xHigh > xLow ? 1 : 0.5);
    const scale = this.isLog ? Math.log : (value) => value;
    this.toY = (y) =>
      height -
      margin.bottom -
      ((scale(y) - scale(yLow)) / (scale(yHigh) - scale(yLow))) * (height - margin.top - margin.bottom);
    const svg = element("svg", {
      width,
      height,
      viewBox: `0 0 ${width} ${height}`,
      role: "img",
      tabindex: 0,
      "aria-label": `${this.title}. ${this.summary()} Arrow keys move through the epochs.`,
    });
    for (const tick of this.isLog ? logTicks(yLow, yHigh) : ticks(yLow, yHigh, 5)) {
      const y = this.toY(tick);
      svg.append(element("line", { class: "grid", x1: margin.left, x2: width - margin.right, y1: y, y2: y }));
      svg.append(element("text", { x: margin.left - 8, y: y + 4, "text-anchor": "end" }, `${tickText(tick)}${this.unit}`));
    }
    const wholes = ticks(xLow, xHigh, Math.max(2, Math.floor(width / 80))).filter(Number.isInteger);
    for (const tick of wholes.length ? wholes : [xLow]) {
      svg.append(element("text", { x: this.toX(tick), y: height - 18, "text-anchor": "middle" }, tickText(tick)));
    }
    svg.append(
      element("text", { x: (margin.left + width - margin.right) / 2, y: height - 3, "text-anchor": "middle" }, "epoch"),
    );
    for (const [text, value] of this.references) {
      if (this.isLog && value <= 0) continue;
      const y = this.toY(value);
      svg.append(element("line", { class: "reference", x1: margin.left, x2: width - margin.right, y1: y, y2: y }));
      const isLow = y > margin.top + 20;
      svg.append(
        element(
          "text",
          { class: "reference-text", x: width - margin.right, y: isLow ? y - 5 : y + 14, "text-anchor": "end" },
          `${text} ${format(value)}`,
        ),
      );
    }
    for (const one of this.series) this.drawSeries(svg, one);
    this.cursor = element("line", {
      class: "cursor",
      y1: margin.top,
      y2: height - margin.bottom,
      visibility: "hidden",
    });
    svg.append(this.cursor);
    this.svg = svg;
    this.steps = [...new Set(xs)].sort((a, b) => a - b);
    this.listen();
    this.box.append(svg);
    if (kept) svg.focus();
  }

  drawSeries(svg, one) {
    const usable = (index) => one.y[index] !== null && (!this.isLog || one.y[index] > 0);
    let path = "";
    let isDown = false;
    one.x.forEach((x, index) => {
      if (usable(index)) path += `${isDown ? "L" : "M"}${this.toX(x).toFixed(1)} ${this.toY(one.y[index]).toFixed(1)}`;
      isDown = usable(index);
    });
    svg.append(
      element("path", { d: path, fill: "none", stroke: one.colour, "stroke-width": 2, "stroke-dasharray": one.dash }),
    );
    if (one.x.length <= 40) {
      one.x.forEach((x, index) => {
        if (usable(index))
          svg.append(element("circle", { cx: this.toX(x), cy: this.toY(one.y[index]), r: 2.6, fill: one.colour }));
      });
    }
  }

  summary() {
    const parts = this.series.slice(0, 4).map((one) => {
      const known = one.y.filter((y) => y !== null);
      return known.length
        ? `${one.name}: from ${format(known[0])} to ${format(known[known.length - 1])}`
        : `${one.name}: none`;
    });
    return `${parts.join("; ")}.`;
  }

  listen() {
    const move = (x, at) => {
      this.current = x;
      this.cursor.setAttribute("x1", this.toX(x));
      this.cursor.setAttribute("x2", this.toX(x));
      this.cursor.setAttribute("visibility", "visible");
      const lines = [`epoch ${x}`];
      for (const one of this.series) {
        const index = one.x.indexOf(x);
        if (index >= 0 && one.y[index] !== null) lines.push(`${one.name}: ${format(one.y[index])}${this.unit}`);
      }
      showTip(lines, at[0], at[1]);
      return lines;
    };
    const leave = () => {
      hideTip();
      this.cursor.setAttribute("visibility", "hidden");
    };
    this.svg.addEventListener("pointermove", (event) => {
      const x = event.clientX - this.svg.getBoundingClientRect().left;
      move(
        this.steps.reduce((best, step) => (Math.abs(this.toX(step) - x) < Math.abs(this.toX(best) - x) ? step : best)),
        [event.clientX, event.clientY],
      );
    });
    this.svg.addEventListener("pointerleave", leave);
    this.svg.addEventListener("blur", leave);
    this.svg.addEventListener("keydown", (event) => {
      const direction = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!direction) return;
      event.preventDefault();
      const index = this.steps.indexOf(this.current);
      const next = index < 0 ? 0 : Math.max(0, Math.min(this.steps.length - 1, index + direction));
      const box = this.svg.getBoundingClientRect();
      announce(move(this.steps[next], [box.left + this.toX(this.steps[next]), box.top + 30]).join(", "));
    });
  }
}

// Bars of shares from 0 to 1; the chosen one is marked, and a click or Enter chooses another.
class BarChart {
  constructor(parent, onChoose) {
    this.onChoose = onChoose;
    this.box = element("div", { class: "chart" });
    parent.append(this.box);
    watchWidth(this.box, (width) => this.draw(width));
  }

  show({ title, bars, colours, chosen, even }) {
    Object.assign(this, { title, bars, colours, chosen, even });
    if (this.box.clientWidth) this.draw(Math.floor(this.box.clientWidth));
  }

  draw(width) {
    if (!this.bars) return;
    const height = 190;
    const margin = { left: 48, right: 8, top: 10, bottom: 36 };
    const top = Math.max(...this.bars.map((bar) => bar.share), this.even) * 1.08 || 1;
    const each = (width - margin.left - margin.right) / this.bars.length;
    const toY = (share) => height - margin.bottom - (share / top) * (height - margin.top - margin.bottom);
    const kept = document.activeElement === this.svg;
    const svg = element("svg", {
      width,
      height,
      viewBox: `0 0 ${width} ${height}`,
      role: "img",
      tabindex: 0,
      "aria-label": `${this.title}. Arrow keys move through the experts, Enter shows one on the map.`,
    });
    for (const tick of ticks(0, top * 100, 4)) {
      const y = toY(tick / 100);
      svg.append(element("line", { class: "grid", x1: margin.left, x2: width - margin.right, y1: y, y2: y }));
      svg.append(element("text", { x: margin.left - 6, y: y + 4, "text-anchor": "end" }, `${tickText(tick)} %`));
    }
    this.marks = this.bars.map((bar, place) => {
      const mark = element("rect", {
        x: margin.left + place * each,
        y: toY(bar.share),
        width: Math.max(0.6, each * (each > 3 ? 0.86 : 1)),
        height: Math.max(0, height - margin.bottom - toY(bar.share)),
        fill: css(this.colours(bar.expert)),
        class: bar.expert === this.chosen ? "bar chosen" : "bar",
      });
      svg.append(mark);
      return mark;
    });
    svg.append(
      element("line", {
        class: "reference",
        x1: margin.left,
        x2: width - margin.right,
        y1: toY(this.even),
        y2: toY(this.even),
      }),
    );
    if (each > 22) {
      this.bars.forEach((bar, place) =>
        svg.append(
          element(
            "text",
            { x: margin.left + (place + 0.43) * each, y: height - 19, "text-anchor": "middle" },
            bar.expert,
          ),
        ),
      );
    }
    svg.append(
      element(
        "text",
        { x: (width + margin.left) / 2, y: height - 4, "text-anchor": "middle" },
        each > 22 ? "expert, most used first" : "rank of the expert, most used first",
      ),
    );
    this.svg = svg;
    const placeAt = (x) => Math.max(0, Math.min(this.bars.length - 1, Math.floor((x - margin.left) / each)));
    const describe = (place) => [`expert ${this.bars[place].expert}`, `serves ${percent(this.bars[place].share)} %`];
    svg.addEventListener("pointermove", (event) => {
      showTip(describe(placeAt(event.clientX - svg.getBoundingClientRect().left)), event.clientX, event.clientY);
    });
    svg.addEventListener("pointerleave", hideTip);
    svg.addEventListener("blur", hideTip);
    svg.addEventListener("click", (event) =>
      this.onChoose(this.bars[placeAt(event.clientX - svg.getBoundingClientRect().left)].expert),
    );
    svg.addEventListener("keydown", (event) => {
      const direction = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (event.key === "Enter" && this.current !== undefined) this.onChoose(this.bars[this.current].expert);
      if (!direction) return;
      event.preventDefault();
      this.current = Math.max(0, Math.min(this.bars.length - 1, (this.current ?? -1) + direction));
      const box = svg.getBoundingClientRect();
      showTip(describe(this.current), box.left + margin.left + this.current * each, box.top + 20);
      announce(describe(this.current).join(", "));
    });
    this.box.replaceChildren(svg);
    if (kept) svg.focus();
  }
}
