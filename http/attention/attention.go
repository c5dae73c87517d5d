// Package attention says what needs somebody's attention: the same to the dashboard, to the API and
// to takt doctor.
//
// # State
//
// A reading that is two seconds old at most, see [Reader]. Acknowledgements are in the database.
//
// # Failure
//
// While the database does not answer, that is the problem, beside those that this process knows
// by itself.
//
// # Concurrency
//
// A [Situation] is immutable; a Reader may be used by many.
package attention

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"takt/http/api"
	"takt/http/forecast"
	"takt/storage"
	"takt/store"
)

// Situation is what problems are found in. It is immutable. While the database is Away, most of it
// is as it was known last.
type Situation struct {
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
	// Terminated are the topmost processes that were terminated, Down the paths of all others that don't run
	// and are not below them.
	Terminated []api.TreeNode
	Down       []string
	// Leaked are the processes that have left others behind.
	Leaked []api.TreeNode
	// Refused counts the requests refused within five minutes, because too many ran.
	Refused int
	// Certificate is when the server's certificate expires; zero if it has none. Version is that
	// of this controller.
	Certificate  time.Time
	Version      string
	Troubles     store.Troubles
	Acknowledged []store.Acknowledgement
}

// Problem is something that needs attention.
type Problem struct {
	// Kind is one of [Kinds], Severity bad or warn.
	Kind, Severity string
	// Subjects are what has the problem, such as ids of workers; of very many some. Empty if the
	// kind has no subjects.
	Subjects []string
	// Text is what is wrong, Todo what to do about it, and Command the command that begins with it; "" if there is none. Page is
	// the path of the dashboard's page that shows it.
	Text, Todo, Command, Page string
	Since                     time.Time // zero if it is not known
	// By is the acknowledgement because of which it needs no attention; nil if there is none.
	By *store.Acknowledgement
}

// kind is a kind of problems: how severe they are, and what to do. %s in command is the subject.
type kind struct{ severity, page, todo, command string }

const bad, warn = "bad", "warn"

// kinds are the kinds of problems.
var kinds = map[string]kind{
	"database":    {bad, "/tree", "Tree shows its status. This page updates once it is back.", "takt tree"},
	"storage":     {bad, "/system", "Repair the disk or its mount.", "takt doctor"},
	"full":        {bad, "/system", "Free space on it, or keep files for a shorter time (--retain).", "takt doctor"},
	"s3":          {bad, "/system", "Check the S3 server, its address and its keys.", "takt doctor"},
	"terminated":  {bad, "/tree", "Start it. Tree shows who terminated it, and why.", "takt start %s --reason ..."},
	"tree":        {bad, "/tree", "Tree shows the reason.", "takt tree"},
	"leaked":      {bad, "/tree", "Restart takt when it suits, and report it with a debug bundle.", "takt debug bundle"},
	"queue":       {bad, "/queue", "Start workers, or cancel builds that wait.", "takt list --status pending"},
	"stuck":       {bad, "/queue", "Start or repair a worker for %s, or resume one.", "takt workers"},
	"clock":       {bad, "/system", "Run an NTP client (chrony, systemd-timesyncd) on both machines.", "takt doctor"},
	"certificate": {bad, "/system", "Renew it. takt reads it anew when it changes.", "takt doctor"},

	store.WorkerCritical:    {bad, "/fleet?state=critical", "Repair what it reports. It gets builds again by itself.", "takt workers show %s"},
	store.WorkerSuspect:     {bad, "/fleet?state=suspect", "Drain it, look at the machine, and retry on others what failed there (its page has both).", "takt workers drain %s --reason ..."},
	store.WorkerQuarantined: {bad, "/fleet?state=quarantined", "Look at its last builds. Resume it, or wait for its trial build.", "takt workers resume %s --reason ..."},
	string(store.Offline):   {bad, "/fleet?state=offline", "Check the machine. Delete the worker if it is gone for good.", "takt workers delete %s"},
	store.WorkerSilent:      {warn, "/fleet?state=silent", "Check the machine and its network.", "takt workers show %s"},
	store.WorkerLeaving:     {warn, "/fleet?state=leaving", "Start it again once its builds have ended.", "takt workers show %s"},

	"notices":  {warn, "/notices", "Check the receiver. Redrive what was given up.", "takt notices deliveries %s"},
	"keys":     {warn, "/keys", "Make another one and replace it, where it is used.", "takt keys list"},
	"versions": {warn, "/system", "Install the same version everywhere.", "takt workers"},
	"disk":     {warn, "/fleet", "Free space on it.", "takt workers show %s"},
	"overrun":  {warn, "/queue#running", "Look at the logs. Cancel what hangs.", "takt list --status building"},
	"draining": {warn, "/fleet?state=draining", "Resume a worker.", "takt workers"},
	"waiting":  {warn, "/queue", "Queue shows what each of them waits for.", "takt list --status pending"},
	"failures": {warn, "/builds?state=failed&age=1h", "Look at the errors. Retry the builds once the cause is gone.", "takt list --status failed"},
	"load":     {warn, "/heijunka", "Heijunka shows what keeps this controller busy.", "takt heijunka"},
}

// Kinds returns the kinds of problems and the command for each.
func Kinds() map[string]string {
	commands := make(map[string]string, len(kinds))
	for name, k := range kinds {
		commands[name] = k.command
	}
	return commands
}

const (
	// maxAhead is how far two clocks may be apart before tokens and log lines suffer.
	maxAhead = 5 * time.Second
	// longWait is how long a build may wait before that needs attention.
	longWait = 10 * time.Minute
	fullDisk = 90 // percent
	maxStuck = 10 // how many requirements without a worker are shown
	// certificateLeft is how long a certificate has to be valid.
	certificateLeft = 14 * 24 * time.Hour
)

// troubles are the states of workers that need attention; one that is leaving only while builds wait.
var troubles = []string{store.WorkerCritical, store.WorkerSuspect, store.WorkerQuarantined, string(store.Offline), store.WorkerSilent}

// All returns the whole fleet and queue.
func (s *Situation) All() forecast.Queue { return s.Fleet[0] }

// Troubled returns how many workers need attention.
func (s *Situation) Troubled() (n int) {
	for _, state := range troubles {
		n += s.States[state] - len(s.known(state))
	}
	return n
}

// Stopped returns how many processes don't run, those below terminated ones not counted.
func (s *Situation) Stopped() int { return len(s.Terminated) + len(s.Down) }

// Open returns how many problems need attention, for operators or for others who may read.
func (s *Situation) Open(operator bool) (n int) {
	for _, p := range s.For(operator) {
		if p.By == nil {
			n++
		}
	}
	return n
}

// For returns the problems for operators, or for others who may read: to these, names of keys and
// receivers of notices are secret.
func (s *Situation) For(operator bool) []Problem {
	return slices.DeleteFunc(s.Problems(), func(p Problem) bool { return !operator && (p.Kind == "keys" || p.Kind == "notices") })
}

// Problems returns the problems, most severe first, and those that are acknowledged last.
func (s *Situation) Problems() []Problem {
	all := s.own()
	if !s.Away { // what the database said last may be over
		all = slices.Concat(all, s.stuck(), s.workers(), s.services(), s.work())
	}
	all.add(s.Refused > 0, "load", "", "%s rejected within five minutes, because too many were running.", forecast.Count(s.Refused, "request was", "requests were"))
	rank := func(p Problem) int {
		switch {
		case p.By != nil:
			return 2
		case p.Severity == warn:
			return 1
		}
		return 0
	}
	for i, p := range all {
		if p.By == nil && !slices.Contains(troubles, p.Kind) && p.Kind != store.WorkerLeaving {
			all[i].By = s.acknowledged(p)
		}
	}
	slices.SortStableFunc(all, func(a, b Problem) int { return rank(a) - rank(b) })
	return all
}

// acknowledged returns the acknowledgement of a problem with one subject at most.
func (s *Situation) acknowledged(p Problem) *store.Acknowledgement {
	subject := ""
	if len(p.Subjects) > 0 {
		subject = p.Subjects[0]
	}
	for i := range s.Acknowledged {
		if a := &s.Acknowledged[i]; a.Kind == p.Kind && a.Subject == subject {
			return a
		}
	}
	return nil
}

// known returns the acknowledgements of workers in a state.
func (s *Situation) known(state string) (all []store.Acknowledgement) {
	for _, a := range s.Acknowledged {
		if a.Kind == state && a.State == state {
			all = append(all, a)
		}
	}
	return all
}

// found are problems while they are being found.
type found []Problem

// add adds a problem if it is there.
func (f *found) add(is bool, kind, subject, text string, args ...any) *Problem {
	if !is {
		return &Problem{} // whose changes are of no use
	}
	k := kinds[kind]
	p := Problem{Kind: kind, Severity: k.severity, Text: fmt.Sprintf(text, args...), Todo: k.todo, Command: k.command, Page: k.page}
	if subject != "" {
		p.Subjects = []string{subject}
	}
	p.Command = strings.Replace(p.Command, "%s", subject, 1)
	p.Todo = strings.Replace(p.Todo, "%s", subject, 1)
	*f = append(*f, p)
	return &(*f)[len(*f)-1]
}

// own returns the problems that this process knows without the database.
func (s *Situation) own() (f found) {
	cause := ""
	for _, n := range s.Terminated {
		if s.Away && strings.Contains(n.Path+"/", "/database/") {
			cause = n.Path
		}
	}
	p := f.add(s.Away, "database", "", "The database does not answer. No accepted work is lost.")
	if cause != "" {
		p.Text = "The database does not answer, because " + cause + " was terminated. No accepted work is lost."
		p.Todo, p.Command = "Start it. Tree shows who terminated it, and why.", "takt start "+cause+" --reason ..."
	}
	for _, n := range s.Terminated {
		f.add(n.Path != cause, "terminated", n.Path, "%s was terminated.", n.Path)
	}
	f.add(len(s.Down) > 0 && !s.Away, "tree", "", "%s not running: %s.", forecast.Count(len(s.Down), "process is", "processes are"), store.Clip(strings.Join(s.Down, ", "), 200))
	for _, n := range s.Leaked {
		f.add(true, "leaked", n.Path, "%s has leaked %s, which don't end.", n.Path, forecast.Count(n.Leaked, "process", "processes"))
	}
	f.add(s.Files.Local != nil, "storage", "", "This controller can't use its disk: %v.", s.Files.Local)
	f.add(s.Full != nil, "full", "", "The disk of this controller is nearly full: new builds are rejected.")
	s3, dual := s.Files.S3 != nil && s.Files.S3.Err != nil, s.Files.Mode == storage.ModeDual
	f.add(s3 && !dual, "s3", "", "S3 does not answer: no file can be stored or read.")
	f.add(s3 && dual, "s3", "", "S3 does not answer. Files are stored on this controller; %s still to be copied.", forecast.Count(s.Copies, "is", "are")).Severity = warn
	if left := time.Until(s.Certificate); !s.Certificate.IsZero() && left < certificateLeft {
		if left > 0 {
			f.add(true, "certificate", "", "The certificate of this controller expires in %s.", forecast.Rough(left)).Severity = warn
		} else {
			f.add(true, "certificate", "", "The certificate of this controller has expired: clients refuse it.")
		}
	}
	return f
}

// stuck returns the builds that can't start.
func (s *Situation) stuck() (f found) {
	room := s.Room()
	queue := f.add(room.Reason() != "", "queue", "", "%s", room.Refused())
	if room.Reason() == store.RoomUnmatched {
		queue.Severity, queue.Todo = warn, "Start a worker that can take them, or cancel them. Queue shows what each of them lacks."
	}
	more, n := 0, 0
	for _, id := range slices.Sorted(maps.Keys(s.Fleet)) {
		q := s.Fleet[id]
		if !isStuck(q) {
			continue
		}
		if n++; n > maxStuck {
			more += q.Pending
			continue
		}
		f.add(true, "stuck", q.Class.String(), "%s can't start. %s", forecast.Count(q.Pending, "build", "builds"), forecast.Unable(q)).Since = s.Oldest
	}
	p := f.add(more > 0, "stuck", "", "%s can't start.", forecast.Count(more, "more build", "more builds"))
	p.Todo, p.Since = "Queue shows what each of them lacks.", s.Oldest
	f.add(s.Ahead.Abs() > maxAhead, "clock", "", "The clocks of this controller and of the database are %s apart.", forecast.Span(s.Ahead))
	return f
}

// isStuck reports whether builds of one class wait for which there is no worker now.
func isStuck(q forecast.Queue) bool { return q.Class.ID != 0 && q.Pending > 0 && q.Able == 0 }

// workers returns the workers in states that need attention.
func (s *Situation) workers() (f found) {
	states := troubles
	if s.All().Pending > 0 {
		states = append(slices.Clone(states), store.WorkerLeaving)
	}
	for _, state := range states {
		known := s.known(state)
		var rows []store.WorkerDetail
		for _, w := range s.Workers {
			if w.State == state && !slices.ContainsFunc(known, func(a store.Acknowledgement) bool { return a.Subject == w.ID }) {
				rows = append(rows, w)
			}
		}
		if n := s.States[state] - len(known); n > 0 {
			s.inState(&f, state, n, rows)
		}
		if len(known) > 0 {
			p := f.add(true, state, known[0].Subject, "%s", named(known[0].Name, len(known), state))
			p.By, p.Subjects = &known[0], nil
			for _, a := range known {
				p.Subjects = append(p.Subjects, a.Subject)
			}
		}
	}
	return f
}

// named says that n workers, one of them with a name, are in a state.
func named(name string, n int, state string) string {
	switch {
	case name == "":
		return forecast.Count(n, "worker is ", "workers are ") + state + "."
	case n > 1:
		return name + " and " + forecast.Count(n-1, "other worker are ", "other workers are ") + state + "."
	}
	return name + " is " + state + "."
}

// inState adds that n workers are in a state. rows are some of them.
func (s *Situation) inState(f *found, state string, n int, rows []store.WorkerDetail) {
	if len(rows) == 0 {
		p := f.add(true, state, "", "%s", named("", n, state))
		p.Command = "takt workers"
		return
	}
	w := rows[0]
	p := f.add(true, state, w.ID, "%s", named(w.Name, n, state))
	p.Subjects = nil
	for _, w := range rows {
		p.Subjects = append(p.Subjects, w.ID)
	}
	p.Since = w.LastSeenAt
	say := func(more string, since time.Time) {
		p.Text, p.Since = strings.TrimSuffix(strings.TrimSuffix(p.Text, ".")+": "+more, ".")+".", since
	}
	switch {
	case state == store.WorkerSuspect:
		say(w.Suspect, w.SuspectSince)
		p.Page = "/fleet/" + w.ID
		if w.SuspectServed {
			p.Todo = "It gets builds as before, because too few others can take them. " + p.Todo
		}
	case state == store.WorkerSilent && len(w.Builds) > 0:
		p.Text = strings.TrimSuffix(p.Text, ".") + "; " + forecast.Count(len(w.Builds), "build runs", "builds run") + " on " + w.Name
		if limit := s.Timeouts.BuildTimeout; limit > 0 {
			p.Text += ", lost soon after " + w.LastSeenAt.Add(limit).UTC().Format(time.TimeOnly) + " UTC if nothing is heard"
		}
		p.Text += "."
	case state == store.WorkerQuarantined:
		say(w.Quarantine, time.Time{})
	case state == store.WorkerCritical && w.Finding != "":
		say(w.Finding, w.DiagnosedAt)
	case state == store.WorkerLeaving:
		p.Text, p.Since = strings.TrimSuffix(p.Text, ".")+", and "+forecast.Count(s.All().Pending, "build waits", "builds wait")+".", time.Time{}
	}
}

// services returns what is wrong with notices, keys and versions.
func (s *Situation) services() (f found) {
	for _, n := range s.Troubles.Notices {
		to := store.Origin(n.URL)
		switch {
		case n.Disabled != "":
			f.add(true, "notices", n.ID, "Notices are no longer sent to %s: %s.", to, n.Disabled).Command = "takt notices enable " + n.ID
			continue
		case n.Failing > 0:
			f.add(true, "notices", n.ID, "%s not delivered to %s: %s.", forecast.Count(n.Failing, "notice is", "notices are"), to, strings.TrimSuffix(store.Clip(n.Error, 200), "."))
		default:
			f.add(true, "notices", n.ID, "%s given up for %s: %s.", forecast.Count(n.Dead, "notice was", "notices were"), to, strings.TrimSuffix(store.Clip(n.Error, 200), ".")).Command = "takt notices redrive " + n.ID
		}
		f[len(f)-1].Since = n.Since
	}
	for _, k := range s.Troubles.Keys {
		if left := k.Expires.Sub(s.Now); left > 0 {
			f.add(true, "keys", k.Name, "Key %s expires in %s.", k.Name, forecast.Rough(left))
		} else {
			f.add(true, "keys", k.Name, "Key %s has expired, and was in use.", k.Name).Since = k.Expires
		}
	}
	all := slices.DeleteFunc(slices.Clone(s.Troubles.Controllers), func(v string) bool { return v == s.Version })
	for i, v := range all {
		all[i] = cmp.Or(v, "an older one")
	}
	f.add(len(all) > 0, "versions", "controllers", "Controllers of different versions use this database: %s beside %s.", strings.Join(all, ", "), s.Version)
	n, others := 0, []string{}
	for _, v := range slices.Sorted(maps.Keys(s.Troubles.Workers)) {
		if v != "" && v != s.Version { // workers of other programs need not say theirs
			n, others = n+s.Troubles.Workers[v], append(others, v)
		}
	}
	f.add(n > 0, "versions", "workers", "%s another version than this controller, which is %s: %s.", forecast.Count(n, "worker has", "workers have"), s.Version, store.Clip(strings.Join(others, ", "), 100))
	return f
}

// work returns what is wrong with builds and with what they run on.
func (s *Situation) work() (f found) {
	fleet := s.All()
	stuck := false
	for _, q := range s.Fleet {
		stuck = stuck || isStuck(q)
	}
	f.add(s.Disk >= fullDisk && s.States[store.WorkerCritical] == 0, "disk", s.DiskID, "The disk of %s is %.0f %% full.", s.DiskName, s.Disk).Page = "/fleet/" + s.DiskID
	f.add(fleet.Late > 0, "overrun", "", "%s running for longer than 90 %% of builds do.", forecast.Count(fleet.Late, "build is", "builds are"))
	f.add(fleet.Able == 0 && fleet.Draining > 0 && !stuck, "draining", "", "No build could start. %s", forecast.Unable(fleet))
	f.add(!stuck && fleet.Pending > 0 && s.Now.Sub(s.Oldest) > longWait, "waiting", "", "%s waiting.", forecast.Count(fleet.Pending, "build is", "builds are")).Since = s.Oldest
	f.add(store.ManyFailed(s.Failed, s.Ended), "failures", "", "%s.", s.Failures())
	return f
}

// Failures describes how many builds failed recently.
func (s *Situation) Failures() string {
	if s.Ended == store.MaxEnded {
		return fmt.Sprintf("%d of the last %d builds failed", s.Failed, s.Ended)
	}
	return fmt.Sprintf("%d of %d failed in the last hour", s.Failed, s.Ended)
}
