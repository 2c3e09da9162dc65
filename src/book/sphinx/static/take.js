// Every figure can be had as SVG and as PNG, in the colours of paper, with a line that says whose it is.
addEventListener("DOMContentLoaded", () => {
  const root = document.documentElement;
  const book = document.querySelector("meta[property='og:site_name']").content;
  const chapter = /^\d+(?=\.)/.exec(document.querySelector("h1")?.textContent ?? "");

  // The lines under an exported drawing: book, chapter, figure, licence, and where it stands.
  const credit = (figure, number) => {
    const page = document.querySelector("link[rel=canonical]")?.href;
    const of = [book, chapter && `chapter ${chapter}`, number || document.title.split(" — ")[0]];
    return [`${of.filter(Boolean).join(", ")}. CC BY 4.0`, page && `${page}#${figure.id}`].filter(Boolean);
  };

  const exported = (svg, lines) => {
    const { x, y, width, height } = svg.viewBox.baseVal, size = width / 48;
    const whole = height + (lines.length + 1) * 1.4 * size;
    const copy = svg.cloneNode(true);
    copy.removeAttribute("style");
    copy.setAttribute("viewBox", `${x} ${y} ${width} ${whole}`);
    copy.setAttribute("width", width);
    copy.setAttribute("height", whole);
    const made = (name, values, text = "") => {
      const part = document.createElementNS(copy.namespaceURI, name);
      for (const [key, value] of Object.entries(values)) part.setAttribute(key, value);
      part.textContent = text;
      return part;
    };
    copy.prepend(made("rect", { x, y, width, height: whole, fill: "var(--page)" }));
    lines.forEach((line, i) => copy.append(made("text", {
      x: x + size, y: y + height + (i + 1) * 1.4 * size, fill: "var(--muted)", stroke: "none",
      "font-size": size, "font-family": "sans-serif",
    }, line)));
    const theme = root.dataset.theme;
    root.dataset.theme = "light";
    const light = getComputedStyle(root), value = (_, name) => light.getPropertyValue(name).trim();
    const drawn = new XMLSerializer().serializeToString(copy)
      .replace(/var\((--[\w-]+)\)/g, value).replace(/currentcolor/gi, value("", "--ink"));
    root.dataset.theme = theme;
    return { drawn, width, height: whole };
  };

  const save = (blob, name) => {
    const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  };
  const asBlob = (drawn) => new Blob([drawn], { type: "image/svg+xml" });
  const WIDTH = 1600;
  const formats = {
    SVG: ({ drawn }, name) => save(asBlob(drawn), `${name}.svg`),
    PNG: async ({ drawn, width, height }, name) => {
      const image = new Image();
      image.src = URL.createObjectURL(asBlob(drawn));
      await image.decode();
      const canvas = Object.assign(document.createElement("canvas"), { width: WIDTH, height: Math.round((WIDTH * height) / width) });
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      URL.revokeObjectURL(image.src);
      canvas.toBlob((blob) => save(blob, `${name}.png`));
    },
  };

  for (const svg of document.querySelectorAll("figure svg.figure:not(.on-phone)")) {
    const figure = svg.closest("figure"), caption = figure.querySelector(".caption-text");
    if (!caption) continue;
    const number = figure.querySelector(".caption-number")?.textContent.trim() ?? "";
    const take = Object.assign(document.createElement("span"), { className: "take" });
    for (const [format, make] of Object.entries(formats)) {
      const button = Object.assign(document.createElement("button"), { type: "button", textContent: format });
      button.setAttribute("aria-label", `${format} of ${number || "this figure"}`);
      button.addEventListener("click", () => make(exported(svg, credit(figure, number)), figure.id));
      take.append(" ", button);
    }
    figure.querySelector("figcaption p").prepend(take);
  }
});
