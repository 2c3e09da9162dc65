// A formula that scrolls is in reach of the keyboard; one that fits is no stop for it.
document.addEventListener("DOMContentLoaded", () => {
  const observer = new ResizeObserver((entries) => {
    for (const { target } of entries)
      if (target.scrollWidth > target.clientWidth) target.tabIndex = 0;
      else target.removeAttribute("tabindex");
  });
  document
    .querySelectorAll(".equation > .formula, .formula.wide")
    .forEach((formula) => observer.observe(formula));
});
