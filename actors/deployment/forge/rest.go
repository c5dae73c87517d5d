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

// pageSize is the largest page that GitHub returns.
const pageSize = 100

// Repos returns all repositories of an organisation that the credential can see. It reads
// page by page.
func (a *Account) Repos(ctx context.Context, org string) ([]Repo, error) {
	var all []Repo
	seen := map[int64]bool{} // a repository that moves to another page during the reads comes twice
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

// CreateRequest is a repository to create.
type CreateRequest struct {
	Org, Name, Description, Visibility string
	// Marker identifies takt's own unfinished repository.
	Marker string
	// Look says that the repository may already exist. The forge is asked first, so that
	// no creation is wasted.
	Look bool
}

// Target is the repository that a copy goes to.
type Target struct {
	ID  int64
	URL string
	// Made means that this call made it. Owned means that takt made it, now or in an earlier
	// try. A repository that is not ours must not be written to.
	Made, Owned bool
}

// maxDescription is the longest description that GitHub accepts, in characters.
const maxDescription = 350

// marked is the description of an unfinished repository.
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

// Create makes a repository, or finds the existing one. It may be repeated.
func (a *Account) Create(ctx context.Context, w CreateRequest) (Target, error) {
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
		return Target{ID: made.GetID(), URL: made.GetCloneURL(), Made: true, Owned: true}, nil
	}
	if e, ok := errors.AsType[*Error](err); ok && e.Status == http.StatusUnprocessableEntity {
		// The name is taken: perhaps by ourselves, when an answer was lost.
		if target, found, lookErr := a.Find(ctx, w); lookErr != nil || found {
			return target, lookErr
		}
	}
	return Target{}, err
}

// Find checks whether a repository of that name exists, and whether it is ours.
func (a *Account) Find(ctx context.Context, w CreateRequest) (Target, bool, error) {
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
		return Target{}, false, nil // it was renamed, so the name is free
	}
	ours := isMarked(r.GetDescription(), w.Marker)
	return Target{ID: r.GetID(), URL: r.GetCloneURL(), Made: ours, Owned: ours}, true, nil
}

// Settings are the final settings of a copy.
type Settings struct {
	Description   string
	DefaultBranch string // "" for a repository without branches
}

// Configure gives a copy its description without the marker, and its default branch. It may
// be repeated.
func (a *Account) Configure(ctx context.Context, org, name string, s Settings) error {
	edit := &github.Repository{Description: &s.Description}
	if s.DefaultBranch != "" {
		edit.DefaultBranch = &s.DefaultBranch
	}
	_, err := call(ctx, a, fmt.Sprintf("Setting up %s/%s", org, name), false, func(ctx context.Context) (*github.Repository, *github.Response, error) {
		return a.client.Repositories.Edit(ctx, url.PathEscape(org), name, edit)
	})
	return err
}
