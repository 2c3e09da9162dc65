// The search: a dialog on every page, opened by its button or Ctrl+K, and the search page.
// What ranks, `search/index.js`, is loaded when it is first needed.
(() => {
  const root = new URL(document.documentElement.dataset.content_root ?? "./", location.href);
  let loading;
  const load = () => loading ??= new Promise((resolve, reject) => {
    const script = Object.assign(document.createElement("script"), { src: new URL("search/index.js", root).href });
    script.onload = resolve;
    script.onerror = reject;
    document.head.append(script);
  });

  const made = (tag, attributes = {}, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  };
  const marked = (parts) => parts.map(([words, mark]) => (mark ? made("mark", {}, words) : words));

  // A field and the results below it, as one element; `limit` is how many results it lists.
  function search(limit, shown = () => {}) {
    const input = made("input", {
      type: "search", name: "q", "aria-label": "Search this book", placeholder: "Search this book",
      autocomplete: "off", autocapitalize: "off", spellcheck: "false", enterkeyhint: "go",
    });
    const form = made("form", { role: "search", action: new URL("search.html", root).href }, input);
    const status = made("p", { role: "status", class: "search-status" });
    const list = made("ol", { class: "search-results" });
    const all = made("a", { class: "search-all", hidden: "" }, "All results");
    const links = () => [...list.querySelectorAll("a"), ...(all.hidden ? [] : [all])];

    function item({ url, fragment, path, title, excerpt }) {
      const lines = [made("span", { class: "search-title" }, ...marked(title))];
      if (path) lines.push(made("span", { class: "search-path" }, path));
      if (excerpt.length) lines.push(made("span", { class: "search-excerpt" }, ...marked(excerpt)));
      return made("li", {}, made("a", { href: new URL(url + fragment, root).href }, ...lines));
    }

    async function update() {
      const query = input.value.trim();
      let found = { count: 0, results: [] };
      if (query) {
        status.textContent ||= "Searching …";
        try {
          await load();
        } catch {
          status.textContent = "The search could not be loaded.";
          return;
        }
        if (query !== input.value.trim()) return; // typed on while it was loading
        found = searchBook(query, limit);
      }
      list.replaceChildren(...found.results.map(item));
      const { count, more } = found;
      const says = `${more ? "The best " : ""}${count} result${count > 1 ? "s" : ""}`;
      status.textContent = !query ? "" : count ? says : "Nothing found. Try another word.";
      all.hidden = count <= limit;
      all.href = `${form.action}?q=${encodeURIComponent(query)}`;
      shown(query);
    }

    input.addEventListener("input", update);
    input.addEventListener("focus", load, { once: true });
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      await update();
      links()[0]?.click();
    });
    const element = made("div", { class: "search" }, form, status, list, all);
    element.addEventListener("keydown", (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const stops = [input, ...links()];
      stops[Math.max(0, Math.min(stops.length - 1, stops.indexOf(document.activeElement) + step))].focus();
    });
    return { element, input, update };
  }

  let dialog, field;
  function open() {
    if (!dialog) {
      field = search(8);
      const close = made("button", { type: "button", class: "search-close", "aria-label": "Close the search" }, "×");
      dialog = made("dialog", { class: "search-dialog", "aria-label": "Search this book" }, field.element, close);
      document.body.append(dialog);
      close.addEventListener("click", () => dialog.close());
      // In a search field, Escape first empties it.
      dialog.addEventListener("keydown", (event) => {
        if (event.key !== "Escape") return;
        event.preventDefault();
        dialog.close();
      });
      dialog.addEventListener("click", ({ target }) => {
        if (target === dialog || target.closest("a")) dialog.close(); // beside it, or a result
      });
    }
    if (!dialog.open) dialog.showModal();
    field.input.focus();
    field.input.select();
  }

  // Before the theme's own field opens.
  addEventListener("keydown", (event) => {
    if (!(event.ctrlKey || event.metaKey) || event.shiftKey || event.altKey || event.key.toLowerCase() !== "k") return;
    event.preventDefault();
    event.stopImmediatePropagation();
    if (dialog?.open) dialog.close();
    else open();
  }, true);
  addEventListener("click", (event) => {
    if (!event.target.closest?.(".search-button__button")) return;
    event.stopImmediatePropagation();
    open();
  }, true);

  document.addEventListener("DOMContentLoaded", () => {
    const page = document.getElementById("search-page");
    if (!page) return;
    const { element, input, update } = search(20, (query) => {
      history.replaceState(null, "", query ? `?q=${encodeURIComponent(query)}` : location.pathname);
    });
    page.replaceChildren(element);
    input.value = new URLSearchParams(location.search).get("q") ?? "";
    input.focus();
    addEventListener("load", update); // the scroll spy must not find the results' links
  });
})();
