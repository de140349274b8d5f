// Turns the page by a click on the hidden link, which the browser may first have to fetch the code for.
(function click() {
  const place = document.querySelector(".st-key-turn");
  const link = place?.querySelector("a");
  if (link) link.click();
  else if (place) setTimeout(click, 20);
})();
