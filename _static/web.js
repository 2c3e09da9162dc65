// Paper is light; the theme button says its state; the contents mark the section being read.
{
  const root = document.documentElement;
  let onScreen = "";
  const print = (starts) => {
    if (starts == !!onScreen) return;
    const theme = starts ? "light" : onScreen;
    onScreen = starts ? root.dataset.theme : "";
    root.dataset.theme = theme;
  };
  matchMedia("print").addEventListener("change", (event) => print(event.matches));
  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));

  const ready = () => {
    const button = document.querySelector(".theme-switch-button span");
    const names = { auto: "automatic", light: "light", dark: "dark" };
    const say = () => (button.textContent = `Theme: ${names[root.dataset.mode]}`);
    new MutationObserver(say).observe(root, { attributeFilter: ["data-mode"] });
    say();

    // The section being read is the last whose heading is above the top of the window.
    const links = [...document.querySelectorAll(".bd-toc-nav a[href^='#']")];
    const sections = links.map((link) => document.getElementById(decodeURIComponent(link.hash.slice(1))));
    const top = document.getElementById("pst-back-to-top");
    let waiting = false, before = 0, marked = null;
    const mark = () => {
      waiting = false;
      const below = sections.findIndex((each) => each.getBoundingClientRect().top > Math.min(innerHeight / 3, 160));
      const link = links[(below < 0 ? links.length : below) - 1] ?? null;
      if (link !== marked) {
        marked?.removeAttribute("aria-current");
        link?.setAttribute("aria-current", "location");
        for (const each of document.querySelectorAll(".bd-toc-nav .active")) each.classList.remove("active");
        for (let each = link; each && !each.matches(".bd-toc-nav"); each = each.parentElement)
          if (each.matches("a, li")) each.classList.add("active");
        // The contents may be longer than the window.
        const frame = link?.closest(".bd-sidebar-secondary");
        if (frame && frame.scrollHeight > frame.clientHeight)
          frame.scrollTop += link.getBoundingClientRect().top - frame.clientHeight / 2;
        marked = link;
      }
      top.style.display = scrollY < before && scrollY > innerHeight ? "block" : "none";
      before = scrollY;
    };
    addEventListener("scroll", () => {
      if (!waiting) requestAnimationFrame(mark);
      waiting = true;
    }, { passive: true });
    top.addEventListener("click", () => scrollTo({ top: 0 }));
    mark();

    // A menu closes when one goes elsewhere.
    for (const menu of document.querySelectorAll("details.menu")) {
      const close = () => (menu.open = false);
      document.addEventListener("click", (event) => menu.contains(event.target) || close());
      menu.addEventListener("focusout", (event) => event.relatedTarget && !menu.contains(event.relatedTarget) && close());
      menu.addEventListener("keydown", (event) => {
        if (event.key != "Escape") return;
        close();
        menu.querySelector("summary").focus();
      });
    }
  };
  document.readyState == "loading" ? addEventListener("DOMContentLoaded", ready) : ready();
}
