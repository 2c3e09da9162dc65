"""What a page may load and run: its Content-Security-Policy, in the page itself.

So it holds on any host, and for a page that is opened from a folder.
"""

import base64
import hashlib
import re

# Firefox fetches a book's next page ahead, under default-src. Styles are 'unsafe-inline' since
# pictures and formulas carry theirs in attributes, for which there are no hashes.
POLICY = (
    "default-src 'self'; script-src {scripts}; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src data:; connect-src 'none'; frame-src 'none'; "
    "worker-src 'none'; object-src 'none'; base-uri {base}; form-action 'self'"
)
META = '<meta http-equiv="Content-Security-Policy" content="{}">'
CHARSET = re.compile(r'<meta charset="utf-8" ?/?>')


def with_policy(page: str) -> str:
    """The page with its policy, which names the page's own inline scripts by their hashes.

    Raises:
        ValueError: if it has no ``<meta charset="utf-8">``, behind which the policy stands.
    """
    page = re.sub(META.format('[^"]*'), "", page)
    inline = re.findall(r"(?s)<script>(.*?)</script>", page)
    base = "'self'" if "<base " in page else "'none'"
    scripts = " ".join(["'self'", *dict.fromkeys(map(hashed, inline))])
    policy = META.format(POLICY.format(scripts=scripts, base=base))
    page, n_replaced = CHARSET.subn(lambda charset: charset[0] + policy, page, count=1)
    if not n_replaced:
        raise ValueError('a page needs <meta charset="utf-8"> in its head')
    return page


def hashed(script: str) -> str:
    """A script as a policy names it."""
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
