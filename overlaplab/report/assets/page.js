// Draws each chart of the data island into the element that has its name. Specs are drawn once: their colours are the
// style sheet's variables, so that they follow the reader's theme, and print in the light one.
"use strict";
{
  const options = {
    ast: true, // expressions are interpreted: the page's policy forbids to make code of them
    renderer: "svg",
    actions: false,
    logLevel: 1, // errors; what Vega-Lite warns of is no reader's business
    defaultStyle: false,
    tooltip: { disableDefaultStyle: true },
  };
  // Data sets stand there by column, which is shorter.
  function rowsOf(columns) {
    if (Array.isArray(columns)) return columns;
    const entries = Object.entries(columns);
    return entries[0][1].map((_, place) => Object.fromEntries(entries.map(([name, values]) => [name, values[place]])));
  }

  const specs = JSON.parse(document.getElementById("charts").textContent);
  for (const [id, spec] of Object.entries(specs)) {
    const place = document.getElementById(id);
    for (const name in spec.datasets) spec.datasets[name] = rowsOf(spec.datasets[name]);
    window.vegaEmbed(place, spec, options).catch((error) => {
      place.textContent = `This chart could not be drawn: ${error}`;
      console.error(id, String(error));
    });
  }

  function download(blob, name) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  function wrapped(pen, text, width) {
    const lines = [""];
    for (const word of text.split(" ")) {
      const longer = `${lines.at(-1)} ${word}`.trim();
      if (lines.at(-1) === "" || pen.measureText(longer).width <= width) lines[lines.length - 1] = longer;
      else lines.push(word);
    }
    return lines;
  }

  // The chart as it is seen: its variables become colours, and its title and caption, which are the page's, stand above.
  async function savePicture(figure) {
    const svg = figure.querySelector(".chart svg");
    const copy = svg.cloneNode(true);
    const copies = copy.querySelectorAll("*");
    svg.querySelectorAll("*").forEach((element, place) => {
      for (const name of ["fill", "stroke"]) {
        if (element.getAttribute(name)?.startsWith("var(")) {
          copies[place].setAttribute(name, getComputedStyle(element)[name]);
        }
      }
    });
    const image = new Image();
    image.src = URL.createObjectURL(new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" }));
    await image.decode();
    const canvas = document.createElement("canvas");
    const pen = canvas.getContext("2d");
    const [margin, line, scale] = [14, 20, 2];
    const lines = [...figure.querySelectorAll("figcaption h4, figcaption p:not(.hint)")].flatMap((part) => {
      const { color, fontFamily, fontWeight } = getComputedStyle(part);
      const font = `${fontWeight} 15px ${fontFamily}`;
      pen.font = font;
      return wrapped(pen, part.textContent.trim(), image.width).map((text) => ({ text, color, font }));
    });
    canvas.width = (image.width + 2 * margin) * scale;
    canvas.height = (image.height + 2 * margin + line * lines.length) * scale;
    pen.scale(scale, scale);
    pen.fillStyle = getComputedStyle(document.body).backgroundColor;
    pen.fillRect(0, 0, canvas.width, canvas.height);
    lines.forEach(({ text, color, font }, place) => {
      pen.font = font;
      pen.fillStyle = color;
      pen.fillText(text, margin, margin + line * (place + 0.7));
    });
    pen.drawImage(image, margin, margin + line * lines.length);
    URL.revokeObjectURL(image.src);
    canvas.toBlob((blob) => download(blob, `${figure.querySelector(".chart").id}.png`), "image/png");
  }

  // Numbers without thousands' commas, nothing for what is unknown; a name that a spreadsheet would run stays a name.
  function field(cell) {
    const text = cell.textContent.trim();
    if (cell.classList.contains("right")) return text === "\u2013" ? "" : text.replaceAll(",", "");
    return `"${(/^[=+\-@]/.test(text) ? `'${text}` : text).replaceAll('"', '""')}"`;
  }

  function saveTable(part) {
    const rows = [...part.querySelectorAll("tr")].map((row) => [...row.cells].map(field).join(","));
    download(new Blob([`\ufeff${rows.join("\r\n")}\r\n`], { type: "text/csv" }), `${part.id}.csv`);
  }

  for (const button of document.querySelectorAll("button.save")) {
    const figure = button.closest("figure");
    button.addEventListener("click", () => (figure ? savePicture(figure) : saveTable(button.closest("details"))));
    button.hidden = false;
  }

  // On paper everything is open.
  let opened = [];
  window.addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const part of opened) part.open = true;
  });
  window.addEventListener("afterprint", () => {
    for (const part of opened) part.open = false;
  });
}
