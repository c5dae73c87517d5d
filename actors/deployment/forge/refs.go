package forge

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-github/v75/github"
)

// Refs maps the full names of branches and tags to the ids of their objects.
type Refs map[string]string

// refsTimeout bounds one reading of a repository's refs, of which there may be many.
const refsTimeout = 5 * time.Minute

// Refs returns a repository's branches and tags at the forge. It reads them as git does, but
// without git, because a deployment does that for each repository and the two processes would
// take half the time of a small one's clone.
func (a *Account) Refs(ctx context.Context, cloneURL string) (Refs, error) {
	if err := a.g.checkClone(cloneURL); err != nil {
		return nil, err
	}
	at := strings.TrimSuffix(cloneURL, "/") + "/info/refs?service=git-upload-pack"
	return call(ctx, a, "Reading the branches and tags", false, func(context.Context) (Refs, *github.Response, error) {
		notice(ctx, time.Now().Add(refsTimeout))
		ctx, cancel := context.WithTimeoutCause(ctx, refsTimeout, errCallTooSlow)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
		if err != nil {
			return nil, nil, err
		}
		name, value, _ := strings.Cut(a.header(), ": ")
		req.Header.Set(name, value)
		req.Header.Set("User-Agent", "git/2 (takt)") // some servers answer browsers otherwise
		resp, err := a.g.gitHTTP.Do(req)
		if err != nil {
			return nil, nil, err
		}
		defer resp.Body.Close()
		answer := &github.Response{Response: resp}
		if resp.StatusCode != http.StatusOK {
			return nil, answer, fmt.Errorf("%s of %s", resp.Status, cloneURL)
		}
		refs, err := readRefs(bufio.NewReader(resp.Body))
		return refs, answer, err
	})
}

// readRefs reads the reply to a request for a repository's refs: lines that begin with their
// length, a flush before the first ref and one after the last. A reply that ends before that is
// an error, because it would look like a repository with fewer refs.
func readRefs(r io.Reader) (Refs, error) {
	refs, line := Refs{}, make([]byte, 1<<16)
	for flushes := 0; flushes < 2; {
		if _, err := io.ReadFull(r, line[:4]); err != nil {
			return nil, fmt.Errorf("reading the list of refs: %w", err)
		}
		n, err := strconv.ParseUint(string(line[:4]), 16, 16)
		if err != nil || n > 0 && n < 4 {
			return nil, fmt.Errorf("invalid length in the list of refs: %q", line[:4])
		}
		if n == 0 {
			flushes++
			continue
		}
		if _, err := io.ReadFull(r, line[4:n]); err != nil {
			return nil, fmt.Errorf("reading the list of refs: %w", err)
		}
		text, _, _ := strings.Cut(string(line[4:n]), "\x00") // the first ref is followed by what the server can do
		if flushes == 0 && strings.HasPrefix(text, "# service=") {
			continue
		}
		if err := refs.add(strings.TrimSuffix(text, "\n")); err != nil {
			return nil, err
		}
	}
	return refs, nil
}

// parseRefs parses the output of for-each-ref.
func parseRefs(out string) (Refs, error) {
	refs := Refs{}
	for line := range strings.Lines(out) {
		if err := refs.add(strings.TrimRight(line, "\n")); err != nil {
			return nil, err
		}
	}
	return refs, nil
}

// add adds a line of an object's id and a ref's name. It skips refs that are neither branch
// nor tag, and the targets of tag objects (^{}).
func (r Refs) add(line string) error {
	id, name, ok := strings.Cut(line, " ")
	if !ok || len(id) < 40 {
		return fmt.Errorf("invalid line in the list of refs: %q", line)
	}
	if isCopied(name) && !strings.HasSuffix(name, "^{}") {
		r[name] = id
	}
	return nil
}

// isCopied reports whether a ref is part of a copy. Branches and tags are; refs that the
// forge keeps for itself (refs/pull) are not.
func isCopied(name string) bool {
	return strings.HasPrefix(name, "refs/heads/") || strings.HasPrefix(name, "refs/tags/")
}

// Diff describes how other differs from r, "" if it does not. It names a few refs and
// counts the rest.
func (r Refs) Diff(other Refs) string {
	var wrong []string
	for name, id := range r {
		switch got, ok := other[name]; {
		case !ok:
			wrong = append(wrong, name+" is missing")
		case got != id:
			wrong = append(wrong, name+" is another")
		}
	}
	for name := range other {
		if _, ok := r[name]; !ok {
			wrong = append(wrong, name+" is too much")
		}
	}
	if len(wrong) == 0 {
		return ""
	}
	slices.Sort(wrong)
	const show = 5
	text := strings.Join(wrong[:min(show, len(wrong))], ", ")
	if n := len(wrong) - show; n > 0 {
		text += fmt.Sprintf(" and %d more", n)
	}
	return text
}

// Default returns the default branch for a copy: wanted if it exists, else the first
// branch, "" if there is none.
func (r Refs) Default(wanted string) string {
	if _, ok := r["refs/heads/"+wanted]; ok && wanted != "" {
		return wanted
	}
	for _, name := range slices.Sorted(maps.Keys(r)) {
		if b, ok := strings.CutPrefix(name, "refs/heads/"); ok {
			return b
		}
	}
	return ""
}
