import base64
import hashlib
import re

from ramen.serve.http.dashboard import dashboard_csp, dashboard_page


def contents(tag: str) -> list[str]:
    return re.findall(rf"<{tag}>(.*?)</{tag}>", dashboard_page(), re.DOTALL)


def digest(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def test_the_policy_allows_exactly_the_script_and_the_style_of_the_page() -> None:
    policy = dict(part.split(" ", 1) for part in dashboard_csp().split("; "))
    assert policy["default-src"] == "'none'"
    assert [policy["script-src"]] == [digest(text) for text in contents("script")]
    assert [policy["style-src"]] == [digest(text) for text in contents("style")]
    assert policy["connect-src"] == "'self'"
    assert policy["img-src"] == "data: blob:"


def test_it_needs_nothing_from_elsewhere() -> None:
    page = dashboard_page()
    addresses = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+[\w/.]*", page))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert set(re.findall(r'\b(?:src|href)="([^"]*)"', page)) == {"data:,", "#streams"}
    assert "@import" not in page
    assert "url(" not in page


def test_no_text_becomes_markup() -> None:
    [script] = contents("script")
    assert (
        re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", script)
        == []
    )
    assert re.findall(r'\sstyle="', dashboard_page()) == []  # the policy would refuse it
    assert re.findall(r'\son\w+="', dashboard_page()) == []


def test_every_label_and_description_points_to_an_element() -> None:
    page = dashboard_page()
    ids = re.findall(r'\sid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    pointers = re.findall(r'\s(?:for|aria-labelledby|aria-describedby|aria-controls)="([^"]+)"', page)
    assert {name for pointer in pointers for name in pointer.split()} <= set(ids)
    assert set(re.findall(r'byId\("([^"]+)"\)', page)) <= set(ids)
