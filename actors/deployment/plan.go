package deployment

import (
	"slices"
	"strings"
	"time"

	"takt/actors/deployment/forge"
	"takt/store"
)

// plan decides what a deployment consists of: what the source has, less what the
// filters leave out, and what each is called at the target, which has the
// repositories taken already.
func plan(r store.DeploymentRequest, source, taken []forge.Repo) (rows []store.DeploymentRepo, filtered int) {
	there := make(map[string]bool, len(taken))
	for _, t := range taken {
		there[strings.ToLower(t.Name)] = true
	}
	users := map[string]string{} // of a target's name: the first repository that gets it
	source = slices.Clone(source)
	slices.SortFunc(source, func(a, b forge.Repo) int { return strings.Compare(a.Name, b.Name) })
	for _, s := range source {
		if !wanted(r, s) {
			filtered++
			continue
		}
		row := store.DeploymentRepo{
			Name: s.Name, Target: rename(r.NameTemplate, s.Name, r.SourceOrg),
			Source: store.RepoSource{
				ID: s.ID, URL: s.CloneURL, Description: s.Description, DefaultBranch: s.DefaultBranch,
				Visibility: visibility(r.Visibility, s.Visibility), SizeKB: s.SizeKB,
			},
		}
		if !r.AllowPublish && widens(s.Visibility, row.Source.Visibility) {
			row.Source.Refused = "Its copy would be " + row.Source.Visibility + ", which the source is not: allow_publish allows it"
		}
		key := strings.ToLower(row.Target)
		row.Source.Taken = there[key]
		switch other := users[key]; {
		case row.Source.Refused != "":
		case !namePattern.MatchString(row.Target):
			row.Source.Refused = "The name " + row.Target + " is not one that the forge takes"
		case other != "":
			row.Source.Refused = "Its copy would have the same name as that of " + other
		default:
			users[key] = s.Name
		}
		rows = append(rows, row)
	}
	return rows, filtered
}

// wanted applies the filters.
func wanted(r store.DeploymentRequest, s forge.Repo) bool {
	return (len(r.Include) == 0 || matches(r.Include, s.Name)) && !matches(r.Exclude, s.Name) &&
		(r.OnlyVisibility == "" || r.OnlyVisibility == s.Visibility) && takes(r.Archived, s.Archived) && takes(r.Forks, s.Fork)
}

// takes reports whether a rule takes a repository that is such, or is not.
func takes(rule string, such bool) bool {
	switch rule {
	case store.TakeOnly:
		return such
	case store.TakeNone:
		return !such
	default:
		return true
	}
}

func visibility(wish, source string) string {
	if wish == keepVisibility {
		return source
	}
	return wish
}

// widens reports whether more people see a repository of visibility to than one of
// from. What GitHub may call it one day counts as private.
func widens(from, to string) bool {
	const order = "private internal public"
	return strings.Index(order, to) > max(0, strings.Index(order, from))
}

// estimate says what making so many repositories costs: the longer of what the
// limits on creating allow, and perRepo at the given concurrency.
func estimate(make, concurrency int, limits []forge.Limit, perRepo time.Duration) store.DeploymentEstimate {
	e := store.DeploymentEstimate{Calls: 2 * make} // create and settle
	if concurrency > 0 {
		e.Took = perRepo * time.Duration((make+concurrency-1)/concurrency)
	}
	for _, l := range limits {
		if l.N > 0 {
			e.Took = max(e.Took, l.Per*time.Duration((make-1)/l.N))
		}
	}
	return e
}
