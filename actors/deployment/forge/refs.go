package forge

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Refs maps the full names of branches and tags to the ids of their objects.
type Refs map[string]string

// parseRefs parses the output of ls-remote and for-each-ref: lines of an object's id and
// a ref's name, separated by a tab or a space. It skips refs that are neither branch nor
// tag, and the targets of tag objects (^{}).
func parseRefs(out string) (Refs, error) {
	refs := Refs{}
	for line := range strings.Lines(out) {
		line = strings.TrimRight(line, "\n")
		id, name, ok := strings.Cut(strings.Replace(line, "\t", " ", 1), " ")
		if !ok || len(id) < 40 {
			return nil, fmt.Errorf("invalid line in the list of refs: %q", line)
		}
		if isCopied(name) && !strings.HasSuffix(name, "^{}") {
			refs[name] = id
		}
	}
	return refs, nil
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
