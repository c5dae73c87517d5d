package store

import (
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// How a secret is given to a build: as a variable, or as a file.
const (
	SecretEnv  = "env"
	SecretFile = "file"
)

// Inputs are what goes into a build beside its files, or limits it.
type Inputs struct {
	Params Params
	// ParamsOptional is true if a worker may leave out parameters that its operator does not
	// permit.
	ParamsOptional bool
	// Secrets are the names of secrets, and how each is given: SecretEnv or SecretFile.
	Secrets map[string]string
	// Timeout is how long an attempt may take; 0 leaves that to the worker.
	Timeout time.Duration
	// MaxAttempts is how many attempts the build has; 0 leaves that to the controller.
	MaxAttempts int
	// RetryOn are the exit codes with which an attempt is lost and not the build. A command that a
	// signal ended counts as shells count it: 128 and the signal's number.
	RetryOn []int
	Facts
}

// Facts say what was built. They need nothing of a worker.
type Facts struct {
	Commit string `json:"commit,omitempty"` // in hexadecimal
	Branch string `json:"branch,omitempty"`
	Dirty  *bool  `json:"dirty,omitempty"` // whether the tree had changes that are not in the commit
	Remote string `json:"remote,omitempty"`
}

// IsDirty reports whether the tree is known to have had changes that are not in the commit.
func (f Facts) IsDirty() bool { return f.Dirty != nil && *f.Dirty }

// Bind reports whether i has more than facts, so that a build without it would be another one.
func (i *Inputs) Bind() bool {
	return i != nil && (len(i.Params) > 0 || i.ParamsOptional || len(i.Secrets) > 0 || i.Timeout > 0 || i.MaxAttempts > 0 || len(i.RetryOn) > 0)
}

// Empty reports whether there is nothing in i.
func (i *Inputs) Empty() bool { return i == nil || !i.Bind() && i.Facts == Facts{} }

// inputsRow is a row of build_inputs in JSON.
type inputsRow struct {
	Params         Params            `json:"params"`
	ParamsOptional bool              `json:"params_optional"`
	Secrets        map[string]string `json:"secrets"`
	TimeoutS       int               `json:"timeout_s"`
	MaxAttempts    int               `json:"max_attempts"`
	RetryOn        []int             `json:"retry_on"`
	Facts          Facts             `json:"facts"`
}

// Scan reads a row of a database in JSON.
func (i *Inputs) Scan(column any) error {
	*i = Inputs{}
	text, _ := column.(string)
	if text == "" {
		return nil
	}
	var row inputsRow
	if err := json.Unmarshal([]byte(text), &row); err != nil {
		return err
	}
	*i = Inputs{row.Params, row.ParamsOptional, row.Secrets, time.Duration(row.TimeoutS) * time.Second, row.MaxAttempts, row.RetryOn, row.Facts}
	return nil
}

// Limits of the other inputs.
const (
	MaxMaxAttempts = 10
	MaxRetryOn     = 16
	maxBranch      = 255 // bytes
	maxRemote      = 512 // bytes
)

// ParseTimeout reads a build's time limit in whole seconds, up to most. Its error may be shown.
func ParseTimeout(text string, most time.Duration) (time.Duration, error) {
	n, err := strconv.Atoi(text)
	if d := time.Duration(n) * time.Second; err == nil && n >= 1 && n <= int(MaxTimeout/time.Second) && d <= most {
		return d, nil
	}
	return 0, NewError(InvalidTimeout, fmt.Sprintf("timeout must be whole seconds from 1 to %d, got %q", int(min(most, MaxTimeout)/time.Second), Clip(text, 20)))
}

// ParseMaxAttempts reads how many attempts a build has. Its error may be shown.
func ParseMaxAttempts(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > MaxMaxAttempts {
		return 0, NewError(InvalidMaxAttempts, fmt.Sprintf("max_attempts must be a whole number from 1 to %d, got %q", MaxMaxAttempts, Clip(text, 20)))
	}
	return n, nil
}

// ParseRetryOn reads exit codes: a JSON array. The result is in order, each code once. Its error
// may be shown.
func ParseRetryOn(text string) ([]int, error) {
	var codes []int
	invalid := func(c int) bool { return c < 1 || c > 255 }
	if json.Unmarshal([]byte(text), &codes) != nil || len(codes) > MaxRetryOn || slices.ContainsFunc(codes, invalid) {
		return nil, NewError(InvalidRetryOn, fmt.Sprintf("retry_on must be a JSON array of at most %d exit codes from 1 to 255", MaxRetryOn))
	}
	slices.Sort(codes)
	return slices.Compact(codes), nil
}

var validCommit = regexp.MustCompile(`^[0-9a-f]{7,64}$`)

// Set sets the fact that a submitter sent under a name: commit, branch, dirty or remote. Its
// error may be shown.
func (f *Facts) Set(name, value string) error {
	invalid := func(format string, args ...any) error {
		return NewError(InvalidFact, name+": "+fmt.Sprintf(format, args...))
	}
	line := func(limit int) bool {
		return value != "" && len(value) <= limit && utf8.ValidString(value) && !strings.ContainsFunc(value, Controls)
	}
	switch name {
	case "commit":
		if f.Commit = strings.ToLower(value); !validCommit.MatchString(f.Commit) {
			return invalid("must be 7 to 64 hexadecimal digits")
		}
	case "branch":
		if f.Branch = value; !line(maxBranch) {
			return invalid("must be at most %d bytes on one line", maxBranch)
		}
	case "dirty":
		if value != "true" && value != "false" {
			return invalid("must be true or false")
		}
		dirty := value == "true"
		f.Dirty = &dirty
	case "remote":
		if !line(4 * maxRemote) { // with credentials
			return invalid("must be a URL of at most %d bytes on one line", maxRemote)
		}
		if f.Remote = publicRemote(value); f.Remote == "" {
			return invalid("must be the URL of a repository on a network, such as https://example.com/app.git, of at most %d bytes", maxRemote)
		}
	}
	return nil
}

// scpLike is how ssh names a repository: user@host:path.
var scpLike = regexp.MustCompile(`^(?:[\w.-]+@)?[\w.-]+:[^:@][^@]*$`)

// publicRemote returns the URL of a repository without what may be a secret: password, token,
// query. It returns "" for one that is not on a network, and where it can't tell what is secret.
func publicRemote(remote string) string {
	if !strings.Contains(remote, "://") {
		if scpLike.MatchString(remote) && len(remote) <= maxRemote {
			return remote
		}
		return ""
	}
	u, err := url.Parse(remote)
	if err != nil || u.Host == "" {
		return ""
	}
	switch u.Scheme {
	case "ssh", "git+ssh", "ssh+git":
		if u.User != nil { // the user is git, or such
			u.User = url.User(u.User.Username())
		}
	case "http", "https", "git", "ftp", "ftps":
		u.User = nil // which may be a token alone
	default:
		return ""
	}
	u.RawQuery, u.ForceQuery, u.Fragment, u.RawFragment = "", false, "", ""
	if text := u.String(); len(text) <= maxRemote {
		return text
	}
	return ""
}
