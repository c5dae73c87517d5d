package forge

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/google/go-github/v75/github"
)

// Repo is a repository as the forge describes it.
type Repo struct {
	ID            int64
	Name          string
	CloneURL      string
	Description   string
	DefaultBranch string
	Visibility    string // public, private or internal
	Archived      bool
	Fork          bool
	SizeKB        int64
}

func repoOf(r *github.Repository) Repo {
	visibility := r.GetVisibility()
	if visibility == "" { // older servers
		visibility = "public"
		if r.GetPrivate() {
			visibility = "private"
		}
	}
	return Repo{
		ID: r.GetID(), Name: r.GetName(), CloneURL: r.GetCloneURL(), Description: r.GetDescription(),
		DefaultBranch: r.GetDefaultBranch(), Visibility: visibility, Archived: r.GetArchived(), Fork: r.GetFork(),
		SizeKB: int64(r.GetSize()),
	}
}

// pageSize is the most that GitHub gives at once.
const pageSize = 100

// Repos returns all repositories of an organisation that the credential sees,
// page by page.
func (a *Account) Repos(ctx context.Context, org string) ([]Repo, error) {
	var all []Repo
	seen := map[int64]bool{} // what moves between pages meanwhile comes twice
	options := &github.RepositoryListByOrgOptions{Type: "all", Sort: "full_name", ListOptions: github.ListOptions{PerPage: pageSize}}
	for {
		next := 0
		page, err := call(ctx, a, "Listing the repositories of "+org, false, func(ctx context.Context) ([]*github.Repository, *github.Response, error) {
			repos, resp, err := a.client.Repositories.ListByOrg(ctx, url.PathEscape(org), options)
			if err == nil {
				next = resp.NextPage
			}
			return repos, resp, err
		})
		if err != nil {
			return nil, err
		}
		for _, r := range page {
			if !seen[r.GetID()] {
				seen[r.GetID()] = true
				all = append(all, repoOf(r))
			}
		}
		if next == 0 {
			return all, nil
		}
		options.Page = next
	}
}

// Wish is a repository that is to be made.
type Wish struct {
	Org, Name, Description, Visibility string
	// Marker tells our own half-made repository from anybody else's.
	Marker string
	// Look says that it may be there already: the forge is asked before a
	// creation is spent on it.
	Look bool
}

// Target is where a copy goes.
type Target struct {
	ID  int64
	URL string
	// Made says that it was just made; Ours that it was, now or by an earlier
	// try. What is not ours must not be written to.
	Made, Ours bool
}

// maxDescription is the longest description that GitHub takes, in characters.
const maxDescription = 350

// marked is the description of a repository while it is being filled.
func marked(description, marker string) string {
	mark := "[takt " + marker + "]"
	if description == "" {
		return mark
	}
	r := []rune(description)
	return string(r[:min(len(r), maxDescription-len(mark)-1)]) + " " + mark
}

func isMarked(description, marker string) bool {
	return strings.HasSuffix(description, "[takt "+marker+"]")
}

// Create makes a repository, or finds the one that is there already. It may be
// repeated.
func (a *Account) Create(ctx context.Context, w Wish) (Target, error) {
	if w.Look {
		target, found, err := a.Find(ctx, w)
		if err != nil || found {
			return target, err
		}
	}
	doing := fmt.Sprintf("Creating %s/%s", w.Org, w.Name)
	made, err := call(ctx, a, doing, true, func(ctx context.Context) (*github.Repository, *github.Response, error) {
		return a.client.Repositories.Create(ctx, url.PathEscape(w.Org), &github.Repository{
			Name: &w.Name, Description: new(marked(w.Description, w.Marker)),
			Visibility: &w.Visibility, Private: new(w.Visibility != "public"),
		})
	})
	if err == nil {
		return Target{ID: made.GetID(), URL: made.GetCloneURL(), Made: true, Ours: true}, nil
	}
	if e, ok := errors.AsType[*Error](err); ok && e.Status == http.StatusUnprocessableEntity {
		// The name is taken: perhaps by ourselves, when an answer was lost.
		if target, found, lookErr := a.Find(ctx, w); lookErr != nil || found {
			return target, lookErr
		}
	}
	return Target{}, err
}

// Find looks whether a repository of that name is there, and whether it is ours.
func (a *Account) Find(ctx context.Context, w Wish) (Target, bool, error) {
	doing := fmt.Sprintf("Looking for %s/%s", w.Org, w.Name)
	r, err := call(ctx, a, doing, false, func(ctx context.Context) (*github.Repository, *github.Response, error) {
		return a.client.Repositories.Get(ctx, url.PathEscape(w.Org), w.Name)
	})
	if e, ok := errors.AsType[*Error](err); ok && e.Status == http.StatusNotFound {
		return Target{}, false, nil
	}
	if err != nil {
		return Target{}, false, err
	}
	if !strings.EqualFold(r.GetName(), w.Name) {
		return Target{}, false, nil // renamed: the name is free
	}
	ours := isMarked(r.GetDescription(), w.Marker)
	return Target{ID: r.GetID(), URL: r.GetCloneURL(), Made: ours, Ours: ours}, true, nil
}

// Settings is what a finished copy gets.
type Settings struct {
	Description   string
	DefaultBranch string // "" for a repository without branches
}

// Settle gives a copy its description, without the marker, and its default
// branch. It may be repeated.
func (a *Account) Settle(ctx context.Context, org, name string, s Settings) error {
	edit := &github.Repository{Description: &s.Description}
	if s.DefaultBranch != "" {
		edit.DefaultBranch = &s.DefaultBranch
	}
	_, err := call(ctx, a, fmt.Sprintf("Setting up %s/%s", org, name), false, func(ctx context.Context) (*github.Repository, *github.Response, error) {
		return a.client.Repositories.Edit(ctx, url.PathEscape(org), name, edit)
	})
	return err
}
