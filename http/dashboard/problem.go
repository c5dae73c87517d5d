package dashboard

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"takt/http/forecast"
	"takt/storage"
	"takt/store"
)

// situation is the input of the overview's problems and of the navigation's counts. It is immutable. While the
// database is Away, most of it is as it was known last.
type situation struct {
	Away bool
	forecast.Reading
	States  map[string]int       // workers by state
	Workers []store.WorkerDetail // those with problems first; not all
	// Timeouts say when builds of silent workers are lost; zero if they are not known.
	Timeouts store.Timeouts
	// Files is the storage; its Mode is "" without the service builds. Full is why it
	// accepts no more files.
	Files storage.Health
	Full  error
	Down  []string // processes that don't run
	// Refused counts the requests refused within five minutes, because too many ran.
	Refused int
}

// problem is something that needs attention.
type problem struct {
	is bool
	// Kind is what kind it is, Severity bad or warn.
	Kind, Severity string
	// Text is what is wrong, and Todo what to do about it.
	Link, Text, Todo string
	Since            time.Time // zero if it is not known
}

const (
	// maxAhead is how far two clocks may be apart before tokens and log lines suffer.
	maxAhead = 5 * time.Second
	// longWait is how long a build may wait before that needs attention.
	longWait = 10 * time.Minute
	fullDisk = 90 // percent
	// fewFailures is how many builds may fail within an hour, whatever their share.
	fewFailures = 2
	maxStuck    = 10 // how many requirements without a worker are shown
	troubles    = 5  // how many of store.WorkerStates need attention
)

// All returns the whole fleet and queue.
func (s *situation) All() forecast.Queue { return s.Fleet[0] }

// Troubled returns how many workers need attention.
func (s *situation) Troubled() (n int) {
	for _, state := range store.WorkerStates()[:troubles] {
		n += s.States[state]
	}
	return n
}

// Problems returns the problems, most severe first.
func (s *situation) Problems() []problem {
	fleet, none, stuck, more := s.All(), time.Time{}, 0, 0
	s3, dual := s.Files.S3 != nil && s.Files.S3.Err != nil, s.Files.Mode == storage.ModeDual
	all := []problem{
		{s.Away, "database", "bad", "/tree", "The database does not answer. No accepted work is lost.", "Tree shows its status. This page updates once it is back.", none},
		{s.Files.Local != nil, "storage", "bad", "/system", fmt.Sprintf("This controller can't use its disk: %v.", s.Files.Local), "Repair the disk or its mount.", none},
		{s.Full != nil, "storage", "bad", "/system", "The disk of this controller is nearly full: new builds are rejected.", "Free space on it.", none},
		{s3 && !dual, "s3", "bad", "/system", "S3 does not answer: no file can be stored or read.", "Check the S3 server, its address and its keys.", none},
		{s3 && dual, "s3", "warn", "/system", "S3 does not answer. Files are stored on this controller; " + forecast.Count(s.Copies, "is", "are") + " still to be copied.", "Check the S3 server, its address and its keys.", none},
		{len(s.Down) > 0 && !s.Away, "tree", "bad", "/tree", forecast.Count(len(s.Down), "process is", "processes are") + " not running: " + clip(200, strings.Join(s.Down, ", ")) + ".", "Tree shows the reason.", none},
	}
	for _, id := range slices.Sorted(maps.Keys(s.Fleet)) {
		q := s.Fleet[id]
		if id == 0 || q.Pending == 0 || q.Able > 0 {
			continue
		}
		if stuck++; stuck > maxStuck {
			more += q.Pending
			continue
		}
		all = append(all, problem{true, "stuck", "bad", "/queue", plural(q.Pending, "build") + " can't start. " + forecast.Unable(q), "Start or repair a worker for " + q.Class.String() + ", or resume one.", s.Oldest})
	}
	all = append(all, problem{more > 0, "stuck", "bad", "/queue", plural(more, "more build") + " can't start.", "Queue shows what each of them lacks.", s.Oldest})
	all = append(all,
		problem{s.Ahead.Abs() > maxAhead, "clock", "bad", "/system", "The clocks of this controller and of the database are " + forecast.Span(s.Ahead) + " apart.", "Run an NTP client (chrony, systemd-timesyncd) on both machines.", none},
		s.troubled("critical", "bad", "Free its disk or memory. It gets builds again by itself."),
		s.troubled("suspect", "bad", "Drain it, look at the machine, and retry on others what failed there (its page has both)."),
		s.troubled("quarantined", "bad", "Look at its last builds. Resume it, or wait for its trial build."),
		s.troubled("offline", "bad", "Check the machine. Delete the worker if it is gone for good."),
		s.troubled("silent", "warn", "Check the machine and its network."),
		problem{s.Disk >= fullDisk && s.States[store.WorkerCritical] == 0, "disk", "warn", "/fleet/" + s.DiskID, fmt.Sprintf("The disk of %s is %.0f %% full.", s.DiskName, s.Disk), "Free space on it.", none},
		problem{fleet.Late > 0, "overrun", "warn", "/queue#running", forecast.Count(fleet.Late, "build is", "builds are") + " running for longer than 90 % of builds do.", "Look at the logs. Cancel what hangs.", none},
		problem{fleet.Able == 0 && fleet.Draining > 0 && stuck == 0, "draining", "warn", "/fleet?state=draining", "No build could start. " + forecast.Unable(fleet), "Resume a worker.", none},
		problem{stuck == 0 && fleet.Pending > 0 && s.Now.Sub(s.Oldest) > longWait, "waiting", "warn", "/queue", forecast.Count(fleet.Pending, "build is", "builds are") + " waiting.", "Queue shows what each of them waits for.", s.Oldest},
		problem{s.Failed > fewFailures && s.Failed*4 >= s.Ended, "failures", "warn", "/builds?state=failed&age=1h", s.Failures() + ".", "Look at the errors. Retry the builds once the cause is gone.", none},
		problem{s.Refused > 0, "load", "warn", "/heijunka", forecast.Count(s.Refused, "request was", "requests were") + " rejected within five minutes, because too many were running.", "Heijunka shows what keeps this controller busy.", none},
	)
	return slices.DeleteFunc(all, func(p problem) bool { return !p.is })
}

// troubled returns the problem that workers are in a state.
func (s *situation) troubled(state, severity, todo string) problem {
	n := s.States[state]
	p := problem{n > 0, state, severity, "/fleet?state=" + state, forecast.Count(n, "worker is ", "workers are ") + state, todo, time.Time{}}
	for _, w := range s.Workers {
		if w.State != state {
			continue
		}
		p.Since = w.LastSeenAt
		if p.Text = w.Name + " is " + state; n > 1 {
			p.Text = w.Name + " and " + forecast.Count(n-1, "other worker are ", "other workers are ") + state
		}
		switch {
		case state == store.WorkerSuspect:
			p.Text, p.Since, p.Link = p.Text+": "+w.Suspect, w.SuspectSince, "/fleet/"+w.ID
			if w.SuspectServed {
				p.Todo = "It gets builds as before, because too few others can take them. " + p.Todo
			}
		case state == store.WorkerSilent && len(w.Builds) > 0:
			p.Text += "; " + forecast.Count(len(w.Builds), "build runs", "builds run") + " on " + w.Name
			if limit := s.Timeouts.BuildTimeout; limit > 0 {
				p.Text += ", lost soon after " + w.LastSeenAt.Add(limit).UTC().Format(time.TimeOnly) + " UTC if nothing is heard"
			}
		case state == store.WorkerQuarantined:
			p.Text, p.Since = p.Text+": "+w.Quarantine, time.Time{}
		case state == store.WorkerCritical && w.Finding != "":
			p.Text, p.Since = p.Text+": "+w.Finding, w.DiagnosedAt
		}
		break
	}
	p.Text = strings.TrimSuffix(p.Text, ".") + "."
	return p
}

// Failures describes how many builds failed recently.
func (s *situation) Failures() string {
	if s.Ended == store.MaxEnded {
		return fmt.Sprintf("%d of the last %d builds failed", s.Failed, s.Ended)
	}
	return fmt.Sprintf("%d of %d failed in the last hour", s.Failed, s.Ended)
}
