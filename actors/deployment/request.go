package deployment

import (
	"cmp"
	"path"
	"regexp"
	"slices"
	"strings"

	"takt/store"
)

const (
	// maxConcurrency is the largest Concurrency of a deployment.
	maxConcurrency = 32
	maxGlobs       = 100
	keepVisibility = "keep"
)

var (
	orgPattern  = regexp.MustCompile(`^[A-Za-z0-9](?:[A-Za-z0-9-]{0,98}[A-Za-z0-9])?$`)
	namePattern = regexp.MustCompile(`^[A-Za-z0-9._-]{1,100}$`)
)

func invalid(message string) error { return store.NewError(store.InvalidArgument, message) }

// normalize fills in the defaults of r and returns an error for invalid values.
func normalize(r store.DeploymentRequest, concurrency int) (store.DeploymentRequest, error) {
	r.Archived = cmp.Or(r.Archived, store.TakeAll)
	r.Forks = cmp.Or(r.Forks, store.TakeAll)
	r.NameTemplate = cmp.Or(r.NameTemplate, "{name}")
	r.Visibility = cmp.Or(r.Visibility, keepVisibility)
	r.Concurrency = cmp.Or(r.Concurrency, concurrency)
	visibilities, rules := []string{"public", "private", "internal"}, []string{store.TakeAll, store.TakeNone, store.TakeOnly}
	switch {
	case !orgPattern.MatchString(r.SourceOrg):
		return r, invalid("source_org must be the name of an organisation")
	case !orgPattern.MatchString(r.TargetOrg):
		return r, invalid("target_org must be the name of an organisation")
	case strings.EqualFold(r.SourceOrg, r.TargetOrg):
		return r, invalid("source_org and target_org are the same")
	case r.Concurrency < 1 || r.Concurrency > maxConcurrency:
		return r, invalid("concurrency must be 1 to 32")
	case r.Visibility != keepVisibility && !slices.Contains(visibilities, r.Visibility):
		return r, invalid("visibility must be keep, public, private or internal")
	case r.OnlyVisibility != "" && !slices.Contains(visibilities, r.OnlyVisibility):
		return r, invalid("only_visibility must be public, private or internal")
	case !slices.Contains(rules, r.Archived):
		return r, invalid("archived must be include, exclude or only")
	case !slices.Contains(rules, r.Forks):
		return r, invalid("forks must be include, exclude or only")
	case !validTemplate(r.NameTemplate):
		return r, invalid("name_template must hold {name}, may hold {owner}, and otherwise letters, digits, '.', '_' and '-'")
	case len(r.Include) > maxGlobs || len(r.Exclude) > maxGlobs:
		return r, invalid("at most 100 patterns each in include and exclude")
	}
	for _, glob := range slices.Concat(r.Include, r.Exclude) {
		if strings.ContainsRune(glob, 0) {
			return r, store.NewError(store.Unprocessable, "include and exclude can't hold NUL")
		}
		if _, err := path.Match(glob, ""); err != nil || glob == "" || len(glob) > 200 {
			return r, invalid("include and exclude must be patterns such as api-*")
		}
	}
	return r, nil
}

func validTemplate(t string) bool {
	return strings.Contains(t, "{name}") && len(t) <= 200 && namePattern.MatchString(rename(t, "n", "o"))
}

// rename returns the name of a copy.
func rename(template, name, owner string) string {
	return strings.NewReplacer("{name}", name, "{owner}", owner).Replace(template)
}

// matches reports whether any of the globs matches a name. It ignores case, as GitHub
// does.
func matches(globs []string, name string) bool {
	name = strings.ToLower(name)
	return slices.ContainsFunc(globs, func(glob string) bool {
		ok, err := path.Match(strings.ToLower(glob), name)
		return ok && err == nil
	})
}
