package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"

	"takt/cmd/internal/cli"
	"takt/cmd/internal/pack"
	"takt/cmd/internal/process"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
)

// job is one build as the demo follows it.
type job struct {
	order, by string
	id        string
	last      api.BuildStatus
}

// submit submits a build with the key of a submitter. require may be empty.
func (s *stage) submit(ctx context.Context, by, order, require string, edit ...func(*client.Submit)) (*job, error) {
	source, err := s.pack(ctx, order)
	if err != nil {
		return nil, err
	}
	what := client.Submit{Platform: platform, Source: client.Bytes(source), Require: require}
	for _, e := range edit {
		e(&what)
	}
	sub, err := s.submitters[by].Submit(ctx, what)
	if err != nil {
		return nil, fmt.Errorf("submitting %s: %w", order, err)
	}
	return &job{order: order, by: by, id: sub.ID}, nil
}

// heavy is a directory that the sample ignores, and its file.
const heavy, heavySize = "node_modules/heavy", 1 << 20

// pack returns the zip of the sample program made for order, so that an artifact that
// was mixed up with another one shows. What the sample ignores is not in it.
func (s *stage) pack(ctx context.Context, order string) ([]byte, error) {
	dir, err := os.MkdirTemp(s.Dir, "source-")
	if err == nil {
		err = os.CopyFS(dir, os.DirFS(s.sample))
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "order.txt"), []byte(order+"\n"), 0o600)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, ".gitignore"), []byte(path.Dir(heavy)+"/\n"), 0o600)
	}
	if err == nil {
		err = os.Mkdir(filepath.Join(dir, path.Dir(heavy)), 0o700)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, heavy), make([]byte, heavySize), 0o600)
	}
	var tree *pack.Tree
	if err == nil {
		tree, err = pack.List(ctx, pack.Options{Dir: dir})
	}
	var out bytes.Buffer
	if err == nil {
		err = tree.Write(ctx, &out, nil)
	}
	if err != nil {
		return nil, fmt.Errorf("packing the sample program: %w", err)
	}
	_, left := tree.LeftOut()
	s.packed = fmt.Sprintf("%s, %s each; ignored and left out: %s, %s", pack.CountText(tree.Files()), humanize.IBytes(uint64(out.Len())),
		pack.CountText(left.Files), humanize.IBytes(uint64(left.Bytes)))
	return out.Bytes(), nil
}

// refresh reads where j stands; a failed build ends the demo with its log.
func (s *stage) refresh(ctx context.Context, j *job) error {
	st, err := s.controller.Client.Status(ctx, j.id, client.BuildAuth{})
	if client.Temporary(err) {
		return nil // it is asked again
	}
	if err != nil {
		return fmt.Errorf("asking for %s: %w", j.order, err)
	}
	j.last = st
	if store.BuildState(st.State) != store.Failed {
		return nil
	}
	return fmt.Errorf("%s failed: %s\n%s", j.order, cli.Or(st.ErrorMessage, "no message"), s.buildLog(ctx, j))
}

func (s *stage) buildLog(ctx context.Context, j *job) string {
	logs, err := s.controller.Client.Logs(ctx, j.id, client.BuildAuth{}, client.LogsAfter{})
	if err != nil {
		return err.Error()
	}
	var b strings.Builder
	for _, l := range logs.Logs {
		fmt.Fprintf(&b, "    %s\n", l.Message)
	}
	return b.String()
}

func (s *stage) buildTen(ctx context.Context) error {
	jobs := make([]*job, 0, builds)
	for i := range builds {
		by, require := "nightly", ""
		if i >= flood {
			by = "release"
		}
		if i == flood-1 {
			require = gpu
		}
		j, err := s.submit(ctx, by, fmt.Sprintf("order %d", i+1), require)
		if err != nil {
			return err
		}
		jobs = append(jobs, j)
	}
	s.say("submitted    %d builds of %s: %d by nightly, of which order %d requires %s, then %d by release", builds, filepath.Base(s.sample), flood, flood, gpu, builds-flood)
	s.say("packed       %s", s.packed)
	// Only now, so that the order does not depend on how fast the machine is.
	if err := s.startWorkers(ctx); err != nil {
		return err
	}
	shown := ""
	err := s.await(ctx, "ten builds to complete", jobs, func(ctx context.Context) (bool, error) {
		marks, completed := make([]byte, 0, builds), 0
		for _, j := range jobs {
			if store.BuildState(j.last.State) != store.Completed {
				if err := s.refresh(ctx, j); err != nil {
					return false, err
				}
			}
			if store.BuildState(j.last.State) == store.Completed {
				completed++
			}
			marks = append(marks, mark(j.last.State))
		}
		if line := string(marks); line != shown {
			shown = line
			s.say("progress     [%s] %2d/%d", line, completed, builds)
		}
		return completed == builds, nil
	})
	if err != nil {
		return err
	}
	return s.collect(ctx, jobs)
}

func mark(state string) byte {
	switch store.BuildState(state) {
	case store.Completed:
		return '#'
	case store.Building:
		return '>'
	case store.Assigned:
		return '-'
	default:
		return '.'
	}
}

// collect downloads every artifact, runs it, compares what it prints with its
// own order, and shows the table.
func (s *stage) collect(ctx context.Context, jobs []*job) error {
	tw := tabwriter.NewWriter(s.out, 2, 0, 2, ' ', 0)
	fmt.Fprintf(tw, "\nBUILD\tSUBMITTER\tWORKER\tATTEMPT\tTOOK\tARTIFACT\tWHAT IT PRINTS\n")
	for _, j := range jobs {
		size, printed, err := s.runArtifact(ctx, j)
		if err != nil {
			return err
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%d\t%s\t%.1f MB\t%s\n", j.id, j.by, s.nameOf(j.last.WorkerID), j.last.Attempt, took(j.last), float64(size)/1e6, printed)
	}
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("showing the builds: %w", err)
	}
	return s.checkOrder(jobs)
}

// checkOrder looks at who built what, and when: the build that requires the label ran on the
// worker that has it, and the submitter that came last did not wait for the flood.
func (s *stage) checkOrder(jobs []*job) error {
	if got := s.nameOf(jobs[flood-1].last.WorkerID); got != "worker-3" {
		return fmt.Errorf("order %d requires %s, and was built by %s", flood, gpu, got)
	}
	last, before := int64(0), 0
	for _, j := range jobs[flood:] {
		last = max(last, started(j.last))
	}
	for _, j := range jobs[:flood] {
		if started(j.last) < last {
			before++
		}
	}
	if before == flood {
		return fmt.Errorf("release had to wait until all %d builds of nightly had started", flood)
	}
	s.say("\nfair         when the last of release's builds started, %d of nightly's %d had not, although they were submitted before", flood-before, flood)
	return nil
}

// started returns when a build was assigned, in milliseconds.
func started(st api.BuildStatus) int64 {
	if st.StartedAt == nil {
		return 0
	}
	return int64(*st.StartedAt)
}

// nameOf returns the name of the worker with this id.
func (s *stage) nameOf(id *string) string {
	for name := range s.fleet {
		if id != nil && process.ReadWord(filepath.Join(s.WorkerState(name), "worker-id")) == *id {
			return name
		}
	}
	return "?"
}

func took(st api.BuildStatus) time.Duration {
	if st.StartedAt == nil || st.CompletedAt == nil {
		return 0
	}
	return (time.Duration(*st.CompletedAt-*st.StartedAt) * time.Millisecond).Round(10 * time.Millisecond)
}

// primes is what the sample program has to find.
const primes = "78498 primes below 1000000"

func (s *stage) runArtifact(ctx context.Context, j *job) (size int64, printed string, err error) {
	path := filepath.Join(s.Dir, "artifact-"+j.id)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_EXCL, 0o700) //nolint:gosec // it is a program, and is to be run
	if err != nil {
		return 0, "", fmt.Errorf("keeping an artifact: %w", err)
	}
	got, err := s.controller.Client.Download(ctx, j.id, client.BuildAuth{}, f, client.FetchOptions{})
	if err = errors.Join(err, f.Close()); err != nil {
		return 0, "", fmt.Errorf("downloading %s: %w", j.order, err)
	}
	if !got.Verified {
		return 0, "", fmt.Errorf("the controller announced no digest for %s", j.order)
	}
	out, err := exec.CommandContext(ctx, path).CombinedOutput()
	if err != nil {
		return 0, "", fmt.Errorf("running the artifact of %s: %w\n%s", j.order, err, out)
	}
	printed = strings.TrimSpace(string(out))
	if want := j.order + ": " + primes; printed != want {
		return 0, "", fmt.Errorf("the artifact of %s printed %q, not %q", j.order, printed, want)
	}
	return got.Size, printed, nil
}

// killOne kills the worker that has the label in the middle of a build, as a power cut would,
// asks why the build waits, and starts another such worker, which completes it.
func (s *stage) killOne(ctx context.Context) error {
	j, err := s.submit(ctx, "release", "order 11", gpu)
	if err != nil {
		return err
	}
	var victim *process.Process
	err = s.await(ctx, "a worker to be in the middle of a build", []*job{j}, func(ctx context.Context) (bool, error) {
		if err := s.refresh(ctx, j); err != nil {
			return false, err
		}
		if store.BuildState(j.last.State) != store.Building || j.last.WorkerID == nil {
			return false, nil
		}
		victim = s.fleet[s.nameOf(j.last.WorkerID)]
		return victim != nil, nil
	})
	if err != nil {
		return err
	}
	first := *j.last.WorkerID
	victim.Kill()
	killed := time.Now()
	s.say("\nkilled       %s with SIGKILL in the middle of build %s", victim.Name, j.id)
	delete(s.fleet, victim.Name)
	if err := s.noticeDeath(ctx, j, first); err != nil {
		return err
	}
	if err := s.ask(ctx, "why", j.id); err != nil {
		return err
	}
	if err := s.startWorker("worker-4", "--label", gpu+"=1"); err != nil {
		return err
	}
	s.say("\nstarted      worker-4, which has the label %s", gpu)
	if err := s.await(ctx, "the killed worker's build to complete elsewhere", []*job{j}, func(ctx context.Context) (bool, error) {
		err := s.refresh(ctx, j)
		return store.BuildState(j.last.State) == store.Completed, err
	}); err != nil {
		return err
	}
	if j.last.WorkerID == nil || *j.last.WorkerID == first {
		return fmt.Errorf("the killed worker's build completed before the kill was noticed: %+v", j.last)
	}
	_, printed, err := s.runArtifact(ctx, j)
	if err != nil {
		return err
	}
	s.say("\nrecovered    by %s as attempt %d, %s after the kill; it prints: %s", s.nameOf(j.last.WorkerID), j.last.Attempt, time.Since(killed).Round(100*time.Millisecond), printed)
	return s.ask(ctx, "explain", j.id)
}

// noticeDeath waits until j, which a killed worker held, is pending again, and the worker
// offline. Time-outs are short for that long only: on a busy machine those that live may be
// silent for as long.
func (s *stage) noticeDeath(ctx context.Context, j *job, worker string) error {
	usual, err := client.Call(ctx, s.controller.Client, api.ShowTimeouts, api.None{})
	if err != nil {
		return fmt.Errorf("reading the time-outs: %w", err)
	}
	short := noticed.Seconds()
	if _, err := client.Call(ctx, s.controller.Client, api.ChangeTimeouts, api.HeartbeatSettings{BuildTimeout: &short, WorkerTimeout: &short, Reason: "the demo"}); err != nil {
		return fmt.Errorf("shortening the time-outs: %w", err)
	}
	if err := s.await(ctx, "the killed worker to be offline and its build pending again", []*job{j}, func(ctx context.Context) (bool, error) {
		if err := s.refresh(ctx, j); err != nil {
			return false, err
		}
		if store.BuildState(j.last.State) == store.Completed {
			return false, errors.New("the build completed before its worker was killed")
		}
		offline, err := s.controller.Client.Workers(ctx, client.WorkerFilter{Status: string(store.Offline)})
		if client.Temporary(err) {
			return false, nil // it is asked again
		}
		return store.BuildState(j.last.State) == store.Pending && slices.ContainsFunc(offline.Workers, func(w api.Worker) bool { return w.ID == worker }), err
	}); err != nil {
		return err
	}
	usual.Reason = "the demo"
	_, err = client.Call(ctx, s.controller.Client, api.ChangeTimeouts, usual)
	return err
}

// ask runs a command of takt about a build, as a user would.
func (s *stage) ask(ctx context.Context, command, id string) error {
	s.say("\n$ takt %s %s", command, id)
	if code, err := s.command(ctx, command, id); err != nil || code != 0 {
		return errors.Join(err, fmt.Errorf("takt %s ended with exit code %d", command, code))
	}
	return nil
}

func (s *stage) showTree(ctx context.Context) error {
	root, err := s.controller.Client.Tree(ctx, client.TreeOptions{})
	if err != nil {
		return fmt.Errorf("reading the tree: %w", err)
	}
	s.say("\nthe tree:")
	cli.PrintTree(s.out, root)
	return nil
}
