package deployment

import (
	"slices"
	"strings"
	"time"

	"takt/actors/deployment/forge"
	"takt/store"
)

// plan returns the repositories of a deployment: those of the source that pass the filters, with
// their names at the target, and how many do not pass. taken are the repositories that the
// target already has.
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
		visibility := r.Visibility
		if visibility == keepVisibility {
			visibility = s.Visibility
		}
		row := store.DeploymentRepo{
			Name: s.Name, Target: rename(r.NameTemplate, s.Name, r.SourceOrg),
			Source: store.RepoSource{
				ID: s.ID, URL: s.CloneURL, Description: s.Description, DefaultBranch: s.DefaultBranch,
				Visibility: visibility, SizeKB: s.SizeKB,
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

// takes reports whether a rule accepts a repository that has the property (such) or lacks
// it.
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

// widens reports whether more people can see a repository with visibility to than one
// with visibility from. An unknown visibility counts as private.
func widens(from, to string) bool {
	const order = "private internal public"
	return strings.Index(order, to) > max(0, strings.Index(order, from))
}

// estimate returns the cost of making that many repositories. The time is the longer of
// two: what the limits on creating allow, and perRepo at the given concurrency.
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
