// What is wider than its box scrolls: it fades where there is more, and is in reach of the keyboard.
document.addEventListener("DOMContentLoaded", () => {
  const boxes = ".equation > .formula, .formula.wide, .highlight pre, .pst-scrollable-table-container";
  const look = ({ target: box }) => {
    const room = box.scrollWidth - box.clientWidth;
    box.classList.toggle("more-left", box.scrollLeft > 1);
    box.classList.toggle("more-right", box.scrollLeft < room - 1);
    if (room > 0) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  };
  const observer = new ResizeObserver((entries) => entries.forEach(look));
  for (const box of document.querySelectorAll(boxes)) {
    observer.observe(box);
    box.addEventListener("scroll", look, { passive: true });
  }
});
