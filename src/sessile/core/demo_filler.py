"""The other sessions of the demo: those of every day, dull ones, and one of 20,000 entries that is made up as it is read.

Nothing here is drawn by chance: every number comes from the name of a session and the place of an entry in it.
"""

from __future__ import annotations

from collections.abc import Iterator

from sessile.core import entries as make
from sessile.core.demo_script import Step, answer, draw, text_of, tool_call, tool_result
from sessile.core.entries import Payload
from sessile.core.ids import derived_entry_id

LONG = 20_000  # entries of the long session
_TENANTS = "tenants"  # its name
_MODEL = "anthropic/claude-sonnet-4-5"
_PACE = 9_000  # milliseconds from one of its entries to the next
_BATCH, _COMPACTED = 20, 400  # entries of a batch, and between two compactions
_FIRST = (
    "Amber",
    "Brisk",
    "Copper",
    "Dapper",
    "Early",
    "Foggy",
    "Golden",
    "Humble",
    "Ivory",
    "Jolly",
    "Little",
    "Merry",
)
_SECOND = ("Bakery", "Bicycles", "Bookshop", "Brewery", "Cinema", "Florist", "Harbour", "Museum", "Orchard", "Theatre")
_SNAGS = ("duplicate key (invoice_no)", "lock wait timeout", "invalid byte sequence 0xff", "foreign key to nobody")
_CLOSING = (
    "Checksums agree on both sides, no rows left behind.",
    "One tenant had invoices without a customer; they went to `orphans`, listed in the report.",
    "Slower than the last batch: the index on `created_at` is built while we copy.",
)

# Sessions of every day. Each begins with a model that its name chooses.
EVERYDAY = r"""
= flaky payments-api 23 Flaky test in CI
> test_refund_window is a flaky test: green here, red in CI about once in ten runs. Always around midnight?
$ bash faketime '23:59:58' pytest -q -k refund_window
|FAILED test_refund_window - assert date(2026, 3, 1) == date(2026, 2, 28)
< Caught it: the test asks for today's date twice, and at midnight gets two different days. I freeze the clock.
$ edit tests/conftest.py
|+def pytest_runtest_setup(): freezer.move_to("2026-02-28T12:00:00Z")
< 500 runs in a loop, none red.
= timezone mobile-app 38 Birthdays one day early
> Customers in New York see their birthday a day early. A timezone thing, surely.
? A date without a time is parsed as midnight in UTC and shown in local time: the day before, west of Greenwich.
@b1d7da01 < `new Date("1990-05-17")` is midnight in UTC, still the 16th in New York. A birthday has no timezone.
> So store it as text?
< As a plain calendar date, yes: `Temporal.PlainDate`, and it is never converted.
:back b1d7da01
:entry {"type":"custom","customType":"sessile.leaf"}
= n-plus-one shop-frontend 50 Product page makes 412 queries
> The product page is slow. 2.4 s for 20 products!
$ bash grep -c SELECT log/development.log
|412
< An N+1 query: one for the products, then twenty for each of them. Eager loading brings it to 3 queries and 91 ms.
= regex data-pipeline 63 The regex that ate the server
> One log line makes the parser hang for minutes: lots of a's, then an exclamation mark.
$ grep re.compile
|parse.py:12:PATTERN = re.compile(r"^(\w+\s?)*$")
< Catastrophic backtracking: `(\w+\s?)*` splits the same text in countless ways. `^[\w\s]*$` means the same, in linear time.
= cors shop-frontend 71 -
> CORS again. It works in curl but not in the browser and I am losing my mind
$ bash curl -si -X OPTIONS -H 'Origin: https://shop.test' https://api.shop.test/cart | grep -i access-control
|access-control-allow-origin: *
< curl does not ask for permission, browsers do: a wildcard is refused as soon as cookies are sent. Echo the origin instead.
= rebase dotfiles 96 Lost commits after a rebase
> I rebased and three commits are GONE. Please tell me git keeps everything
$ bash git reflog -1 main@{1} --format='%h %gs'
|77be012 commit: Teach the parser about comments
< It does. `git branch rescued 77be012` and all three are back. Breathe. 🙂
= oom infra-tools 130 Pod is OOMKilled every hour
> The report worker gets OOMKilled every full hour. A memory leak?
$ edit report/export.py
|-    rows = list(query.all())
|+    rows = query.yield_per(1000)
< No leak, just a very large list: the hourly export held 900,000 rows. Now it streams, with 140 MB instead of 1.9 GB.
= plurals mobile-app 165 -
> Polish translators complain: "5 plik" should be "5 plików". We only have singular and plural.
< Polish has four plural categories: one, few, many, other. ICU messages know them. How many strings have a number?
> I hoped that you would tell me.
$ grep %d
|37 matches in 12 files
< 37 strings. I made a list with the English text beside each, ready for the translators.
= certificate infra-tools 210 Certificate expires on Sunday
> TLS certificate for api.shop.test expires on Sunday and renewal fails since last week
$! bash certbot renew --dry-run
|Challenge failed: 404 for /.well-known/acme-challenge/
< The new proxy answers 404 before the challenge arrives. One location block fixes it. And a calendar is no monitoring.
= rounding payments-api 235 Invoices off by a cent
> VAT on invoices is off by a cent compared with the tax office. Only on some.
? Sum of rounded lines against rounded sum. Both are allowed, but it must be the same everywhere.
$ bash pytest -q tests/test_invoice.py
|64 passed in 1.02s
< We round each line, the tax office rounds the sum. `invoice_total` now rounds once, with `Decimal`; all 64 tests pass.
= pagination payments-api 333 Rows missing between pages
> Exported payments skip rows when new ones come in during the export. Offset pagination?
$ write migrations/0042_payments_cursor.sql
|CREATE INDEX CONCURRENTLY payments_cursor ON payments (created_at, id);
< Yes: each new row pushes others across the edge of a page. A cursor over `(created_at, id)` does not care.
= race payments-api 402 Two refunds for one click
> A customer was refunded twice. The button was clicked once, says the log.
$ bash pytest -q tests/test_refund_race.py --count 200
|200 passed in 31.40s
< Two workers took the same job, a race condition. `FOR UPDATE SKIP LOCKED` closes the gap: 200 races, one refund each.
:entry {"type":"reset_boundary"}
> New topic: what do I tell the customer?
< "You were refunded twice by our mistake; please keep the second one." It is 4 euros, and cheaper than the letter.
= sourdough notes 450 Sourdough as a state machine
> Model my sourdough starter as a state machine. Yes, seriously.
< Hungry → fed → rising → peak → falling → hungry. Only *peak* bakes bread; everything else makes pancakes. 🥞
> Add the fridge.
< `chilled` can be reached from any state and makes all timers six times longer. It also forgives you for holidays.
= unicode data-pipeline 520 José is not José
> Joining customers by name misses people called José. Both sides look the same!
$ bash python -c 'print([len(name) for name in names])'
|[4, 5]
< One is composed (é), the other is an e and an accent. Normalise both to NFC on the way in.
= cron infra-tools 700 Cron job ran twice on Sunday
> The nightly invoice job ran twice on Sunday and not at all in spring. Haunted?
< Daylight saving time: 02:30 exists twice in autumn and never in spring. Run it in UTC.
> And the report at 04:00?
< Safe: nearly all countries change their clocks before three.
= csv data-pipeline 820 CSV import swallows the last column
> Import of the partner's CSV loses the last column, only for files from their Windows machine.
$ bash head -1 partner.csv | xxd | tail -1
|00000030: 616d 6f75 6e74 0d0a                      amount..
< CR before LF: the last header is `amount\r`. Opened with `newline=""`, as the csv module asks, all columns are there.
"""

# Long and dull work: name, project, hours ago and title; what is replaced in every module, and by what; the modules.
_DULL = """\
rename payments-api 88 Rename customer to account ~ who: Customer ~ who: Account ~ api auth billing dunning export ledger tax
temporal shop-frontend 260 Replace moment.js by Temporal ~ moment().add(1, 'day') ~ today.add({ days: 1 }) ~ agenda diff week
alt-texts shop-frontend 575 Alternative texts for all pictures ~ <img> ~ <img alt={t('alt')}> ~ cart footer hero legal news team
docker infra-tools 300 Smaller docker images ~ FROM python:3.13 ~ FROM python:3.13-slim ~ api cron mailer proxy web worker
flags mobile-app 640 Remove old feature flags ~ if (flags.newCheckout) ~ // always ~ banner checkout login onboarding search
links notes 1020 Mend dead links in my notes ~ http://old.wiki.test/ ~ https://wiki.test/ ~ bread bikes garden guitar maps sewing
types payments-api 1100 Make mypy strict ~ def load(path): ~ def load(path: str) -> Book: ~ bank cards fees fraud fx mail vat
"""


def dull_stories() -> str:
    """The dull sessions, as scripts."""
    lines = []
    for row in _DULL.splitlines():
        story, old, new, modules = row.split(" ~ ")
        lines += [f"= {story}", f"> {story.split(' ', 3)[-1]}, please. One module after the other, with its tests."]
        for module in modules.split():
            lines += [f"$ read src/{module}", f"|{old}", f"< {module.capitalize()} next.", f"$ edit src/{module}"]
            lines += [f"|-{old}", f"|+{new}", f"$ bash make test-{module}", f"|{draw(4, 60, story, module)} passed"]
        lines.append("< All modules are done, and every test passed on the way.")
    return "\n".join([*lines, ""])


def long_steps() -> Iterator[Step]:
    """A migration of thousands of tenants: compacted every 400 entries, some batches done again, some labelled."""
    ids: list[str] = []
    for number in range(LONG):
        ids.append(derived_entry_id(_TENANTS, number))
        # Every 2,400 entries a batch is done again: it hangs from the end of the one before the last.
        back = _BATCH + 1 if number % 2_400 == 7 * _BATCH + 1 else 1
        yield Step(ids[-1], ids[number - back] if number else None, long_at(number), _payload(number, ids))


def long_at(number: int) -> int:
    """When an entry of the long session was written, in milliseconds after its beginning."""
    return number * _PACE + number * 7_919 % _PACE


def _payload(number: int, ids: list[str]) -> Payload:
    batch, place = divmod(number, _BATCH)
    if number == 0:
        return make.model_change(_MODEL)
    if number % _COMPACTED == 0:
        summary = f"## Move every tenant to schema v7\n{batch} batches are done, up to {_tenant(number - 1)}."
        return make.compaction(summary, ids[number - _BATCH + 1], _context(number - 1))
    if number % 2_000 == 2 * _BATCH:
        return make.label(ids[number - _BATCH], f"batch-{batch - 1}")
    if place == 1:
        return make.message({"role": "user", "content": f"Next is batch {batch + 1}, {_tenant(number + 1)} and on."})
    if place % 2:
        return make.message(_result(number))
    content = text_of(f"Batch {batch} is done. {_CLOSING[batch % len(_CLOSING)]}")
    if place:
        content = [tool_call(f"call_{number}", "bash", {"command": f"./migrate --to v7 --tenant '{_tenant(number)}'"})]
    read = _context(number)
    return make.message(answer(_MODEL, content, cached=read - 120, read=read, written=draw(40, 220, number)))


def _context(number: int) -> int:
    return 9_000 + number % _COMPACTED * 60


def _result(number: int) -> Payload:
    chance = draw(0, 10**6, _TENANTS, number)
    output = f"{_tenant(number - 1)}: {chance % 90_000:,} rows in {chance % 890 / 10} s, checksum {chance * 3_571:08x}"
    failed = chance % 97 == 0
    output += f"\nERROR: {_SNAGS[chance % len(_SNAGS)]}" if failed else "\ninvoices ok, customers ok, payments ok"
    return tool_result(f"call_{number - 1}", "bash", output, failed=failed)


def _tenant(number: int) -> str:
    return f"{_FIRST[number // 2 % len(_FIRST)]} {_SECOND[number // 24 % len(_SECOND)]} {number // 2:05d}"
