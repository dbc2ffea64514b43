"""The texts of the section."""

INTRODUCTION = """\
Written on {day} by `make bench-speed` on {cores} cores ({processor}, {memory_gb} GB, {system}, Python {python}), with
the wheel of the release build, and with gepa {gepa} and dspy {dspy} from PyPI. Each figure is the median of {repeats}
measurements with their range. Every round measures each cell once, so that a slow phase of the machine affects all
products. Compare figures of this page with each other, not with those of another machine.

All products have the same task and the same scripted proposer: a row needs up to five hidden rules, its reward is the
share of them that the text names, and a proposal adds one line to its parent. Minibatches have 3 rows. Rollouts are
sent to the same container over HTTP, but for *in process*: there the peer computes the reward itself, so that no
request and no reply is written, read or parsed.

![What an optimizer itself uses for a rollout]({chart})
"""
OVERHEAD = """\
Rollouts and proposals take no time. *CPU* is the processor time of the optimizer and all its threads, without
container and proposer. For the command line it is that of the whole process, on a terminal (`plain`), with `--json`
and with `--quiet`; for the Python interface (`api`) and the peers it is without imports. *KB written* is `wchar` of
`/proc/PID/io`: it counts what is written to files, and for this product also the requests, which it writes to its
sockets with `writev`. *KB kept* is the size of all files at the end. The replies have 1.7 KB, or 64 KB where the
table says so. `cache` is the default cache (`readwrite`) in a file of the run. Peers stop at a time cap: their rows
say `stopped`.
"""
GROWTH = """\
The same with 100 rows, so that the number of candidates grows with the run. The texts grow as well: each candidate
has a line more than its parent, and the container repeats the text in its reply.
"""
PEERS_BETTER = """\
Medians of the first table in which a peer uses less than `gepa run --quiet` with 8 workers and without a cache. Peers
that keep their state in memory are left out of the bytes.
"""
DISK = """\
* **This product** keeps every event, every reply (compressed), and tables of candidates, scores and calls in
  `workspace.sqlite`; the events as `events.jsonl` and in a normalized form; result files and charts. A run resumes at
  any event, and every rollout can be read later. The cache is one more file: with it a run is repeated without
  sending anything.
* **gepa** keeps its state in `gepa_state.bin`: candidates, their scores, and every output that was the best on its row
  when it came, ties included. These outputs are also files of their own, and there is a log of the iterations. A run
  resumes at an iteration. The replies of minibatches are not kept.
* **dspy** keeps the files of gepa if `log_dir` is set, and nothing otherwise.

So the bytes are not for the same thing. gepa keeps fewer replies, but does not compress them, and it writes its whole
state again in every iteration.
"""
STARTUP = """\
The time from the start of a process to its end, or to its first rollout in a container that already answers.
"""
REPLAY = """\
A readonly run gets every answer from the cache and sends nothing. A resumed run was killed (`SIGKILL`) at 97 % of its
rollouts; the time is from the start of the next process to the next rollout that the container receives. A replay of
gepa is not measured: its state belongs to one run.
"""
BUSY = """\
The share of the time in which a rollout runs for a worker, without the first and the last fifth of the rollouts.
Rollouts take 200 ms and proposer turns 1 s, but for `P2`: 2 s. `CL`, `P2`, `E20L` and `L1` have 64 workers and 100
rows, `D` has 512 and 1,000. In `E20L`, 2 % of the rollouts take 20 times as long; in `L1`, latencies are lognormal.
gepa evaluates on as many threads, and the proposals of an iteration are made side by side.
"""
