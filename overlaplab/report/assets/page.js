// Draws each chart of the data island into the element that has its name. Specs are drawn once: their colours are the
// style sheet's variables, so that they follow the reader's theme, and print in the light one.
"use strict";
{
  const options = {
    ast: true, // expressions are interpreted: the page's policy forbids to make code of them
    renderer: "svg",
    actions: false,
    defaultStyle: false,
    tooltip: { disableDefaultStyle: true },
  };
  const specs = JSON.parse(document.getElementById("charts").textContent);
  for (const [id, spec] of Object.entries(specs)) {
    const place = document.getElementById(id);
    window.vegaEmbed(place, spec, options).catch((error) => {
      place.textContent = `This chart could not be drawn: ${error}`;
      console.error(id, String(error));
    });
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
