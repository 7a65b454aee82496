"""How well the text of a page can be told from what is behind it, by the definition of WCAG 2."""

from tests.helpers.webdriver import Browser

# Relative luminance is a weighted sum of linear colours; the contrast of two colours is the ratio of their
# luminances, with 0.05 added to each. What is behind a text is the background of the next ancestor that has
# one; if that is a bar, each of its colours.
_CODE = """
    const parse = (text) => {
      const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number);
      return { r, g, b, a };
    };
    const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    const light = ({ r, g, b }) => {
      return 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
    };
    const ratio = (a, b) => {
      const [dark, bright] = [light(a), light(b)].sort((one, other) => one - other);
      return (bright + 0.05) / (dark + 0.05);
    };
    const behind = (element) => {
      for (let part = element; part; part = part.parentElement) {
        const style = getComputedStyle(part);
        const drawn = style.backgroundImage.match(/rgba?\\([^)]*\\)/g);
        if (drawn) return drawn.map(parse);
        const plain = parse(style.backgroundColor);
        if (plain.a === 1) return [plain];
        if (plain.a > 0) throw new Error("half transparent: " + part.className);
      }
      throw new Error("no background");
    };
    const worst = (element, style) => {
      return Math.min(...behind(element).map((one) => ratio(parse(style.color), one)));
    };
    const found = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const element = walker.currentNode.parentElement;
      const text = walker.currentNode.textContent.trim();
      const isSeen = element.checkVisibility() && element.getBoundingClientRect().width > 2;
      if (!text || !isSeen || element.closest(".hidden, script, noscript")) continue;
      found.push([text.slice(0, 40), element.className, worst(element, getComputedStyle(element))]);
    }
    for (const input of document.querySelectorAll("input[placeholder]")) {
      const style = getComputedStyle(input, "::placeholder");
      found.push([input.placeholder, "placeholder", worst(input, style)]);
    }
    return found;"""


def text_contrasts(browser: Browser) -> list[tuple[str, str, float]]:
    """Each text that can be seen, with the class of its element and the ratio of its contrast."""
    return [(text, kind, ratio) for text, kind, ratio in browser.script(_CODE)]
