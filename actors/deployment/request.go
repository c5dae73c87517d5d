package deployment

import (
	"path"
	"regexp"
	"slices"
	"strings"

	"takt/store"
)

const (
	// maxConcurrency is the most repositories that one deployment copies at once.
	maxConcurrency = 32
	maxGlobs       = 100
	keepVisibility = "keep"
)

var (
	orgPattern  = regexp.MustCompile(`^[A-Za-z0-9](?:[A-Za-z0-9-]{0,98}[A-Za-z0-9])?$`)
	namePattern = regexp.MustCompile(`^[A-Za-z0-9._-]{1,100}$`)
)

func invalid(message string) error { return store.NewError(store.InvalidArgument, message) }

// normalize fills in the defaults of r and says what is wrong with it.
func normalize(r store.DeploymentRequest, concurrency int) (store.DeploymentRequest, error) {
	or := func(s *string, value string) {
		if *s == "" {
			*s = value
		}
	}
	or(&r.Archived, store.TakeAll)
	or(&r.Forks, store.TakeAll)
	or(&r.NameTemplate, "{name}")
	or(&r.Visibility, keepVisibility)
	if r.Concurrency == 0 {
		r.Concurrency = concurrency
	}
	switch {
	case !orgPattern.MatchString(r.SourceOrg):
		return r, invalid("source_org must be the name of an organisation")
	case !orgPattern.MatchString(r.TargetOrg):
		return r, invalid("target_org must be the name of an organisation")
	case strings.EqualFold(r.SourceOrg, r.TargetOrg):
		return r, invalid("source_org and target_org are the same")
	case r.Concurrency < 1 || r.Concurrency > maxConcurrency:
		return r, invalid("concurrency must be 1 to 32")
	case !oneOf(r.Visibility, keepVisibility, "public", "private", "internal"):
		return r, invalid("visibility must be keep, public, private or internal")
	case !oneOf(r.OnlyVisibility, "", "public", "private", "internal"):
		return r, invalid("only_visibility must be public, private or internal")
	case !oneOf(r.Archived, store.TakeAll, store.TakeNone, store.TakeOnly):
		return r, invalid("archived must be include, exclude or only")
	case !oneOf(r.Forks, store.TakeAll, store.TakeNone, store.TakeOnly):
		return r, invalid("forks must be include, exclude or only")
	case !validTemplate(r.NameTemplate):
		return r, invalid("name_template must hold {name}, may hold {owner}, and otherwise letters, digits, '.', '_' and '-'")
	case len(r.Include) > maxGlobs || len(r.Exclude) > maxGlobs:
		return r, invalid("at most 100 patterns each in include and exclude")
	}
	for _, glob := range append(append([]string{}, r.Include...), r.Exclude...) {
		if _, err := path.Match(glob, ""); err != nil || glob == "" || len(glob) > 200 {
			return r, invalid("include and exclude must be patterns such as api-*")
		}
	}
	return r, nil
}

func oneOf(s string, allowed ...string) bool {
	return slices.Contains(allowed, s)
}

func validTemplate(t string) bool {
	if !strings.Contains(t, "{name}") || len(t) > 200 {
		return false
	}
	return namePattern.MatchString(rename(t, "n", "o"))
}

// rename makes the name of a copy.
func rename(template, name, owner string) string {
	return strings.NewReplacer("{name}", name, "{owner}", owner).Replace(template)
}

// matches reports whether any of the globs matches a name, whose case does not
// count, as on GitHub.
func matches(globs []string, name string) bool {
	name = strings.ToLower(name)
	for _, g := range globs {
		if ok, err := path.Match(strings.ToLower(g), name); ok && err == nil {
			return true
		}
	}
	return false
}
