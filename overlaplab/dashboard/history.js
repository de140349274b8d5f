// A new query string of the page that is shown takes the place of its last one: only another page is a step back.
(() => {
  const { history } = window;
  if (history.overlaplab) return;
  const push = history.pushState.bind(history);
  history.pushState = (state, title, url) => {
    const stays = new URL(url, window.location.href).pathname === window.location.pathname;
    if (stays) history.replaceState(state, title, url);
    else push(state, title, url);
  };
  history.overlaplab = true;
})();
