"""The told sessions of the demo: one script each, under a line `= name project hours-ago title`; a title of `-` is none.

The scripts are in the notation of `demo_script`. All people, projects and numbers are made up. Secrets are fillers that
become values of the right shape when the stories are told, so that this file holds none.
"""

from __future__ import annotations

STORIES = r"""
= webhook payments-api 2 -
:model anthropic/claude-sonnet-4-5
:level medium
> Add retry with backoff to the webhook sender. Deliveries fail in bursts whenever a merchant deploys, see the chart. [image]
? The chart shows a burst of failures between 6 and 10 o'clock. Before I propose anything I need the sender and its tests.
< I'll look at the sender and its tests first.
$ read src/payments/webhooks.py
|class TransientError(Exception):
|    "The merchant may answer if asked again."
|
|def send(delivery: Delivery) -> None:
|    response = httpx.post(delivery.url, json=delivery.body, timeout=5)
|    response.raise_for_status()
$ bash pytest -q tests/test_webhooks.py
|8 passed in 0.41s
@c0ffee15 < Failed deliveries are dropped today. **A**: a hand-made `retry()`. **B**: `tenacity`, with jitter. I lean towards B.
> Let's try approach A, no new dependency.
< A small decorator with exponential backoff, then.
$ edit src/payments/webhooks.py
|+@retry(TransientError, attempts=5, first_pause=0.5)
| def send(delivery: Delivery) -> None:
$! bash pytest -q tests/test_webhooks.py
|FAILED tests/test_webhooks.py::test_a_503_is_tried_again - assert 1 == 3
|FAILED tests/test_webhooks.py::test_gives_up_after_five - Failed: DID NOT RAISE GivenUp
|2 failed, 6 passed in 0.62s
@deadbee1 < Two tests fail: `TransientError` is never raised, since httpx has errors of its own. Approach A grows and grows.
:back c0ffee15 Approach A: hand-made retry() in webhooks.py. Two of eight tests failed, pauses could not be faked; abandoned.
> Actually, use tenacity after all (approach B).
:level high
:model anthropic/claude-opus-4-5
? tenacity retries on a predicate. 429 and 5xx are worth another try, other 4xx are not. Keep the pause injectable for tests.
< Then `retry_if_exception` with one predicate, and full jitter so that merchants are not hit in step.
$ bash uv add tenacity
|Resolved 31 packages in 212ms
| + tenacity==9.1.2
$ edit src/payments/webhooks.py
|-@retry(TransientError, attempts=5, first_pause=0.5)
|+@retry(retry=retry_if_exception(worth_another_try), wait=wait_random_exponential(multiplier=0.5, max=60),
|+       stop=stop_after_attempt(5), before_sleep=log_retry, reraise=True)
$ bash pytest -q tests/test_webhooks.py
|8 passed in 0.44s
@9f31c2a0 < All 8 tests pass. 429 and 5xx are tried again up to five times within about a minute, other 4xx fail at once.
:label 9f31c2a0 tests-green
:name Webhook retries
@5eed0001 > Great. Also log each retry with the merchant id, and never the body.
$ edit src/payments/webhooks.py
|+def log_retry(state: RetryCallState) -> None:
|+    log.warning("webhook to merchant %s: attempt %d failed", state.args[0].merchant, state.attempt_number)
$ bash pytest -q && ruff check
|212 passed in 9.80s
|All checks passed!
< Each retry is one warning with merchant and attempt. The body holds card data, so it stays out of the log.
:compact 5eed0001 ## Failed webhook deliveries are tried again, without a storm
  - done: `send` retries 429 and 5xx with tenacity, full jitter, five attempts; each retry is logged, never with the body
  - decided: approach A (hand-made retry) was abandoned, two tests failed and pauses could not be faked
  - next: a line for the changelog
> Now a line for the changelog.
@0dd5a1ad < Webhook deliveries that fail with 429 or 5xx are tried again up to five times, with growing, jittered pauses.
@77aa01c4 > Shorter please.
:back 0dd5a1ad
@0b1d22ef > Make it a table row instead.
= webhook-async payments-api 2 Webhook retries, async
> Same thing, but for the async sender. Keep the predicate, share it.
$ read src/payments/async_webhooks.py
|async def send(delivery: Delivery) -> None:
|    (await client.post(delivery.url, json=delivery.body)).raise_for_status()
$ edit src/payments/async_webhooks.py
|+@retry(**POLICY)
| async def send(delivery: Delivery) -> None:
< tenacity knows coroutines: both senders now share `POLICY`. One thing differs, cancelling a delivery also cancels its pause.
= leak infra-tools 5 Deploy script prints too much
:model anthropic/claude-sonnet-4-5
> The staging deploy stopped. Mails go to ana@payments-demo.dev, and here is the token I use: ghp_<w36>
$ bash cat /home/ana/.config/deploy/env
|ANTHROPIC_API_KEY=sk-ant-api03-<w93>AA
|AWS_ACCESS_KEY_ID=AKIA<u16>
|DATABASE_URL=postgres://deploy:<w20>@db.staging.internal:5432/shop
$! bash curl -sf -H 'X-Api-Key: sk-or-v1-<h64>' https://deploy.internal/v1/start
|curl: (22) The requested URL returned error: 403
< Refused (403): the token lacks the `deploy` scope. And all of these are burnt now: they are in this transcript.
> Oops. Rotated. Does the script print them in CI too?
$ edit deploy.sh
|-set -x
|+set +x  # the environment is not for the log
< It did: `set -x` echoed every command with its values. Removed.
= chinese shop-frontend 9 购物车价格显示错误
:model anthropic/claude-opus-4-5
> 购物车里的总价有时候会多一分钱,用户投诉了。帮我看看是不是浮点数的问题?🛒
? 典型的浮点误差:0.1 + 0.2。应当以“分”为单位用整数计算,只在显示的时候格式化。
< 我先看一下计算总价的代码。
$ read src/cart/total.ts
|// 计算购物车总价
|export const total = (items: Item[]) => items.reduce((sum, i) => sum + i.price * i.count, 0);
< 确实是浮点数的问题:`19.99 * 3` 得到 `59.97000000000001`。建议全部改成以分为单位的整数:
  ```ts
  export const totalCents = (items: Item[]) => items.reduce((sum, i) => sum + i.cents * i.count, 0);
  ```
> 好,就这样改。别忘了优惠券打八折的情况。
$ edit src/cart/total.ts
|+export const discounted = (cents: number, percent: number) => Math.round((cents * percent) / 100);
$ bash npm test -- cart
|Tests: 14 passed, 14 total
< 改好了 ✅ 打折只在最后取整一次,14 个测试全部通过。
= japanese mobile-app 31 文字数カウントと絵文字 🎌
:model google/gemini-3-pro
> プロフィールの文字数制限が絵文字でおかしくなります。「👨‍👩‍👧‍👦」が11文字と数えられます。
$ edit src/profile/count.ts
|-export const count = (text: string) => text.length;
|+export const count = (text: string) => [...new Intl.Segmenter("ja").segment(text)].length;
< `length` は UTF-16 の単位を数えるためです。`Intl.Segmenter` なら家族の絵文字も1文字になります 👍
= arabic shop-frontend 55 محاذاة القائمة من اليمين
:model anthropic/claude-sonnet-4-5
> القائمة الجانبية تظهر في الجهة الخطأ عند اختيار اللغة العربية. ما السبب؟
$ edit src/menu.css
|-  margin-left: 16px;
|+  margin-inline-start: 16px;
< السبب هو `margin-left`. الخصائص المنطقية مثل `margin-inline-start` تتبع اتجاه النص تلقائياً ✨
= outage infra-tools 14 checkout returns 500
:model openai/gpt-5.1
:entry {"type":"service_tier_change","serviceTier":"priority"}
:entry {"type":"mcp_tool_selection","selectedToolNames":["mcp_grafana_query","mcp_pager_ack"]}
:entry {"type":"context_change","contextName":"production","tenant":"shop","namespace":"edge"}
:entry {"type":"credential_pin","provider":"openai","hash":"not-a-hash-only-a-demo"}
:message {"role":"developer","content":"Production. Look, explain, and ask before you change anything."}
:file runbooks/disk.md
|1. `df -h`  2. find the largest folder  3. never delete a database file
@d15cf011 > The pager woke me: checkout returns 500. Start with the runbook. :(
:mode plan
:bash df -h /var
|/dev/vda1        80G   80G     0 100% /var
? 100 %. What grew? Logs, most likely; the runbook forbids touching database files.
$! bash du -sh /var/log/nginx
|du: cannot read directory '/var/log/nginx': Permission denied
< Not without more rights.
$ bash sudo du -sh /var/log/* | sort -h | tail -2
|1.2G	/var/log/journal
|71G	/var/log/nginx
:fail 529 overloaded_error: the provider is overloaded, try again later
:model anthropic/claude-opus-4-5
:rules ask-before-delete, no-force-push
:entry {"type":"custom_message","customType":"pager","content":"Incident 4711 acknowledged by ana.","display":true}
< 71 GB of nginx logs: logrotate has not run since Tuesday. I would compress all but the last day. Shall I?
@01dbeef0 > Do it.
:mode none
$ bash sudo logrotate -f /etc/logrotate.d/nginx && df -h /var | tail -1
|/dev/vda1        80G  9.1G   71G  12% /var
:python sum(5_000 * 0.031 for minute in range(42))
|6510.0
:entry {"type":"custom","customType":"incident","data":{"number":4711,"minutes":42}}
:entry {"type":"usage","kind":"summary","provider":"openai","model":"gpt-5.1","usage":{"input":812,"output":64}}
:entry {"type":"model_usage","purpose":"title","api":"openai-responses","provider":"openai","model":"gpt-5.1","stopReason":"stop"}
:entry {"type":"title_change","title":"Night of the full disk","previousTitle":"checkout returns 500","source":"auto"}
:entry {"type":"context_edit","targetId":"d15cf011","replacement":{"content":"Checkout returns 500. Start with the runbook."}}
:label 01dbeef0 approved
< Checkout answers again after 42 minutes. The cause was `daily;` instead of `daily` in the config of logrotate.
= local dotfiles 20 -
:model ollama/qwen3-coder:30b
> zsh takes 1.8 s to start. Offline please, this is my laptop on a train.
$ bash zprof | head -1
|1)  nvm_auto   1420.11 ms  78.9%
< `nvm` takes 79 % of it. Load it when `node` is first called, that leaves about 0.3 s.
= scouts data-pipeline 27 Where do duplicate orders come from?
:model anthropic/claude-opus-4-5
> About 0.3 % of orders arrive twice in the warehouse. Send a scout through the ingestion code, keep your own context small.
? A sub-agent can read the forty files; I only need its findings.
$ task {"agent": "scout-1", "task": "Find every place where an order may be ingested twice."}
|The consumer commits its offset before the insert is flushed (consumer.py:88). Full report: scout-1.md
< After a restart the consumer replays what it had already inserted. An upsert on `order_id` makes replays harmless.
= torn data-pipeline 34 Power cut during the backfill
:model anthropic/claude-sonnet-4-5
> Backfill the exchange rates, one month at a time. March first.
$ bash python backfill.py 2026-03-01 2026-03-31
|31 days, 4,216 rates
< March is complete: 31 days, 4,216 rates. April next?
> Yes, April.
< April is running. The lights just flickered, by the way; I hope that nobody has to read half of this sentence.
:torn
> We had a power cut. Where were we?
< March is complete. My last answer was cut off while it was written, and the file says so. I start April again.
= torn-end mobile-app 190 Battery drain on Android
:model openai/gpt-5.1
> The app drains the battery when it is in the background. Wake locks?
$ bash adb shell dumpsys batterystats | grep -i wake
|Wake lock com.shop.sync: 3h 12m 4s partial
< The sync worker holds a wake lock for three hours: its `finally` never runs, because the job is killed before it gets there.
:torn
= ancient dotfiles 1400 -
> git log with a graph, as an alias. I always forget the flags.
< `git config --global alias.lg "log --graph --oneline --decorate --all"`
@0ld00001 > And only the last ten?
:compact 0ld00001 The user has an alias `lg` for a log with a graph.
< `git lg -10` does it: arguments go behind the alias.
= hooked infra-tools 1210 Terraform drift
:model anthropic/claude-sonnet-4-5
:message {"role":"hookMessage","customType":"git-status","content":"On branch main, nothing to commit","display":true}
> terraform plan wants to recreate the load balancer. Nobody touched it!
$ bash terraform plan -no-color | grep forces
|  ~ name = "edge-lb" -> "edge-lb-1" # forces replacement
< Somebody did: the provider's new version adds a suffix to the name. Pin it to `~> 5.81` and the plan is empty.
= empty notes 77 -
:model anthropic/claude-sonnet-4-5
:level low
= question notes 42 -
:model google/gemini-3-pro
> How many grams are in a cup of flour?
< About 120 g if spooned, 140 g if scooped. A scale settles it.
"""

# The session of the sub-agent in the story `scouts`; it lies in the artifacts folder of that session.
SCOUT = r"""
:entry {"type":"session_init","systemPrompt":"You read code and report.","task":"Find duplicates.","tools":["read","grep"]}
:model anthropic/claude-sonnet-4-5
> Find every place where an order may be ingested twice.
$ read ingest/consumer.py
|        self.consumer.commit()  # before the flush!
|        self.buffer.flush()
< The consumer commits its offset before the insert is flushed (consumer.py:88). Nothing else ingests orders.
"""
SCOUT_REPORT = "# Scout 1\n\nThe consumer commits its offset before the insert is flushed (consumer.py:88).\n"
