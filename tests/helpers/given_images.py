"""Images given to a page as a person would: dropped on an element, or pasted."""

from tests.helpers.webdriver import Browser

_WITH_IMAGE = """
    const [name, css] = arguments;
    const canvas = document.createElement("canvas");
    canvas.width = canvas.height = 8;
    return new Promise((done) => canvas.toBlob((blob) => {
      const data = new DataTransfer();
      data.items.add(new File([blob], name, { type: "image/png" }));
      %s
      done();
    }));"""
_DROP = """
    for (const kind of ["dragenter", "dragover", "drop"]) {
      const event = new DragEvent(kind, { dataTransfer: data, bubbles: true, cancelable: true });
      document.querySelector(css).dispatchEvent(event);
    }"""
_PASTE = """
    const event = new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true });
    document.body.dispatchEvent(event);"""


def drop_image(browser: Browser, name: str, css: str) -> None:
    """Drop a PNG of eight pixels each way on an element."""
    browser.script(_WITH_IMAGE % _DROP, name, css)


def paste_image(browser: Browser, name: str) -> None:
    """Paste one."""
    browser.script(_WITH_IMAGE % _PASTE, name)
