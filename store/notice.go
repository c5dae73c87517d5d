package store

import (
	"encoding/json"
	"net/url"
	"regexp"
	"time"
)

// NoticeEvents lists what notices tell of. The test event is sent to one subscription only.
func NoticeEvents() []string {
	return []string{
		"build.completed", "build.failed", "build.cancelled", "build.requeued",
		"worker.offline", "worker.quarantined", "worker.suspect", "worker.back", "queue.full",
		"deployment.completed", "deployment.failed",
	}
}

// NoticeFilter says of what a subscription gets notices. What is empty lets everything through.
type NoticeFilter struct {
	Events    []string          `json:"events"`
	Platforms []Platform        `json:"platforms"`
	Labels    map[string]string `json:"labels"`
}

// Subscription is a receiver of notices.
type Subscription struct {
	ID  string
	URL string
	// Version grows when URL changes.
	Version int
	NoticeFilter
	// GitHub says that it sets statuses of commits: URL is that of GitHub's REST interface, the
	// secret a token.
	GitHub    bool
	Secrets   []byte // sealed
	Disabled  string // why it gets nothing; "" if it does
	CreatedBy string
	CreatedAt time.Time
	// Waiting and Dead are how many of its notices are not delivered yet, and were given up.
	Waiting, Dead int
	Oldest        time.Time // of those that wait
}

// GitHubLabel names the commit that a build builds, as OWNER/REPO@SHA.
const GitHubLabel = "github"

// MaxSubscriptions is how many subscriptions there may be.
const MaxSubscriptions = 100

// commitName is what GitHub can name: parts of . and .. would lead to other paths. The trigger
// that inserts notices has the same rule.
var commitName = regexp.MustCompile(`^([A-Za-z0-9_.-]+)/([A-Za-z0-9_.-]+)@([0-9a-f]{40})$`)

// ParseCommit splits OWNER/REPO@SHA, a value of GitHubLabel.
func ParseCommit(label string) (repo, sha string, ok bool) {
	m := commitName.FindStringSubmatch(label)
	dots := func(s string) bool { return s == "." || s == ".." }
	if m == nil || dots(m[1]) || dots(m[2]) {
		return "", "", false
	}
	return m[1] + "/" + m[2], m[3], true
}

// Origin returns the scheme and host of a URL. The rest may be secret, so logs, the audit and
// errors have only these.
func Origin(at string) string {
	u, err := url.Parse(at)
	if err != nil {
		return "invalid URL"
	}
	return u.Scheme + "://" + u.Host
}

// NoticeSecrets are the secrets of a subscription as they are sealed.
type NoticeSecrets struct {
	Current  []byte    `json:"current"`
	Old      []byte    `json:"old,omitempty"`
	OldUntil time.Time `json:"old_until,omitzero"`
}

// Active returns the secrets that sign at now, the current one first.
func (s NoticeSecrets) Active(now time.Time) [][]byte {
	if len(s.Old) > 0 && now.Before(s.OldUntil) {
		return [][]byte{s.Current, s.Old}
	}
	return [][]byte{s.Current}
}

// NoticeJob is the job that sends a notice. Triggers insert it.
type NoticeJob struct {
	Subscription string          `json:"subscription"`
	Version      int             `json:"version"` // the subscription's when the notice was made
	ID           string          `json:"id"`
	Body         json.RawMessage `json:"body"`
}

// Kind implements river.JobArgs.
func (NoticeJob) Kind() string { return "notice" }

// Delivery is a notice on its way to a subscription.
type Delivery struct {
	Number                  int64
	Subscription, ID, Event string
	State                   string // waiting, sending, delivered or dead
	Attempts                int
	Error                   string // of the last attempt
	CreatedAt               time.Time
	NextAt                  time.Time // the next attempt, while it waits
	EndedAt                 time.Time
}

// NoticeBacklog is what is not delivered.
type NoticeBacklog struct {
	Waiting, Dead int
	Oldest        time.Duration
}
