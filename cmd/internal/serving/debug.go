package serving

import (
	"context"
	"encoding/json"
	"errors"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"takt/cmd/internal/cli"
	"takt/cmd/internal/settings"
	"takt/http/api"
	"takt/store/postgres"
)

const (
	recentLines = 1000
	recentBytes = 2 << 10 // of one line; what is longer is cut
)

// recentLog keeps the newest lines of the log in memory, at most 2 MiB. It is a writer of
// one line at a time, for any goroutine.
type recentLog struct {
	mu    sync.Mutex
	lines []string // guarded by mu; a ring once it is full
	next  int      // guarded by mu; the oldest of a full ring
}

func (r *recentLog) Write(line []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	text := string(line[:min(len(line), recentBytes)])
	if len(r.lines) < recentLines {
		r.lines = append(r.lines, text)
	} else {
		r.lines[r.next] = text
		r.next = (r.next + 1) % recentLines
	}
	return len(line), nil
}

// all returns the lines, oldest first.
func (r *recentLog) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Concat(r.lines[r.next:], r.lines[:r.next])
}

// buildInfo returns what this program was built from.
func buildInfo() api.BuildInfo {
	out := api.BuildInfo{
		Version: cli.Version(), Go: runtime.Version(), System: runtime.GOOS + "/" + runtime.GOARCH,
		Settings: map[string]string{"vcs.revision": cli.Revision()}, Modules: map[string]string{},
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return out
	}
	for _, s := range info.Settings {
		out.Settings[s.Key] = s.Value
	}
	for _, m := range info.Deps {
		out.Modules[m.Path] = m.Version
	}
	return out
}

// statisticsPatience is short, because a report of a fault is made while things fail.
const statisticsPatience = 5 * time.Second

var errSlowStatistics = errors.New("the database's statistics took too long")

// debugHandler returns the handler of GET /admin/debug, which describes this process.
func (c *controller) debugHandler(db *postgres.DB) func(ctx context.Context) api.Debug {
	return func(ctx context.Context) api.Debug {
		out := api.Debug{Build: buildInfo(), Settings: map[string]string{}, Log: c.recent.all(), Supervision: []json.RawMessage{}}
		for _, s := range settings.Table(&c.cfg) {
			out.Settings[s.Key()] = s.Shown()
		}
		for _, e := range c.tree.Telemetry.Recent() {
			raw, err := json.Marshal(e)
			if err == nil { // always: plain members
				out.Supervision = append(out.Supervision, raw)
			}
		}
		ctx, cancel := context.WithTimeoutCause(ctx, statisticsPatience, errSlowStatistics)
		defer cancel()
		var err error
		if out.Database, err = db.Statistics(ctx); err != nil {
			out.Database, out.DatabaseError = nil, err.Error()
		}
		return out
	}
}
