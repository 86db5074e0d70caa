// Colours of curves, experts and fields.

// Okabe and Ito's colours, which colour-blind readers can distinguish.
const CURVES = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"];
const DASHES = ["", "6 3", "2 3"];
const EXPERTS = [
  [0, 114, 178],
  [230, 159, 0],
  [0, 158, 115],
  [204, 121, 167],
  [86, 180, 233],
  [213, 94, 0],
  [240, 228, 66],
  [110, 80, 160],
  [150, 150, 150],
  [120, 70, 20],
  [60, 200, 190],
  [190, 20, 60],
];
const VIRIDIS = [
  [68, 1, 84],
  [71, 44, 122],
  [59, 81, 139],
  [44, 113, 142],
  [33, 144, 141],
  [39, 173, 129],
  [92, 200, 99],
  [170, 220, 50],
  [253, 231, 37],
];
const DIVERGING = [
  [166, 70, 8],
  [224, 130, 60],
  [247, 196, 150],
  [245, 245, 245],
  [160, 200, 230],
  [70, 140, 200],
  [8, 70, 140],
];

function expertColour(expert) {
  if (expert < EXPERTS.length) return EXPERTS[expert];
  // Steps of the golden angle keep neighbours in number apart.
  const hue = (expert * 137.508) % 360;
  const lightness = 0.42 + 0.22 * ((expert * 0.381966) % 1);
  return fromHue(hue, 0.62, lightness);
}

function fromHue(hue, saturation, lightness) {
  const reach = saturation * Math.min(lightness, 1 - lightness);
  return [0, 8, 4].map((offset) => {
    const place = (offset + hue / 30) % 12;
    return Math.round(255 * (lightness - reach * Math.max(-1, Math.min(place - 3, 9 - place, 1))));
  });
}

function ramp(stops, share) {
  const place = Math.max(0, Math.min(1, share)) * (stops.length - 1);
  const first = Math.min(Math.floor(place), stops.length - 2);
  return stops[first].map((part, index) => part + (stops[first + 1][index] - part) * (place - first));
}

function css(colour) {
  return `rgb(${colour.map(Math.round).join(" ")})`;
}

function swatch(colour, text) {
  const mark = element("span", { class: "swatch", "aria-hidden": "true" });
  mark.style.background = css(colour);
  return element("span", { class: "legend-entry" }, mark, text);
}

// A strip of a palette with the numbers of its ends.
function colourBar(stops, low, high, units) {
  const strip = element("span", { class: "strip", "aria-hidden": "true" });
  strip.style.background = `linear-gradient(to right, ${stops.map(css).join(", ")})`;
  return element(
    "div",
    { class: "legend" },
    element("span", {}, format(low)),
    strip,
    element("span", {}, withUnits(high, units)),
  );
}
