package githubtest

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

func (s *Server) rest() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /orgs/{org}/repos", s.list)
	mux.HandleFunc("POST /orgs/{org}/repos", s.create)
	mux.HandleFunc("GET /repos/{org}/{name}", s.get)
	mux.HandleFunc("PATCH /repos/{org}/{name}", s.edit)
	mux.HandleFunc("POST /repos/{org}/{name}/statuses/{sha}", s.setStatus)
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { problem(w, http.StatusNotFound, "Not Found") })
	return mux
}

// wire is the JSON form of a repository.
type wire struct {
	ID            int64  `json:"id"`
	Name          string `json:"name"`
	FullName      string `json:"full_name"`
	CloneURL      string `json:"clone_url"`
	Description   string `json:"description"`
	DefaultBranch string `json:"default_branch"`
	Visibility    string `json:"visibility"`
	Private       bool   `json:"private"`
	Archived      bool   `json:"archived"`
	Fork          bool   `json:"fork"`
}

func wireOf(r *Repo, host string) wire {
	return wire{
		ID: r.ID, Name: r.Name, FullName: r.Org + "/" + r.Name, CloneURL: "http://" + host + "/" + r.Org + "/" + r.Name + ".git",
		Description: r.Description, DefaultBranch: r.DefaultBranch, Visibility: r.Visibility, Private: r.Visibility != "public",
		Archived: r.Archived, Fork: r.Fork,
	}
}

func reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // an error means that the client has disconnected
}

func problem(w http.ResponseWriter, status int, message string, details ...string) {
	body := map[string]any{"message": message, "documentation_url": "https://docs.github.com/rest"}
	if strings.Contains(message, "secondary rate limit") {
		body["documentation_url"] = "https://docs.github.com/rest/using-the-rest-api/rate-limits-for-the-rest-api#about-secondary-rate-limits"
	}
	if details != nil {
		var errs []map[string]string
		for _, d := range details {
			errs = append(errs, map[string]string{"resource": "Repository", "code": "custom", "message": d})
		}
		body["errors"] = errs
	}
	reply(w, status, body)
}

// limited enforces the primary limit and reports the remaining calls in headers.
func (s *Server) limited(w http.ResponseWriter, token string) bool {
	if s.cfg.CallsPerWindow == 0 {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if window := now.UnixNano() / int64(s.cfg.PrimaryWindow); window != s.window {
		s.window = window
		clear(s.calls)
	}
	s.calls[token]++
	left := max(0, s.cfg.CallsPerWindow-s.calls[token])
	reset := time.Unix(0, (s.window+1)*int64(s.cfg.PrimaryWindow))
	h := w.Header()
	h.Set("X-RateLimit-Limit", strconv.Itoa(s.cfg.CallsPerWindow))
	h.Set("X-RateLimit-Remaining", strconv.Itoa(left))
	h.Set("X-RateLimit-Reset", strconv.FormatInt(reset.Unix(), 10))
	if s.calls[token] <= s.cfg.CallsPerWindow {
		return false
	}
	problem(w, http.StatusForbidden, "API rate limit exceeded for user ID 1.")
	return true
}

// maxPage is the maximum number of items on one of GitHub's pages.
const maxPage = 100

func (s *Server) list(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	org, found := s.orgs[strings.ToLower(r.PathValue("org"))]
	var repos []wire
	for _, name := range slices.Sorted(maps.Keys(org)) {
		repos = append(repos, wireOf(org[name], r.Host))
	}
	s.mu.Unlock()
	if !found {
		problem(w, http.StatusNotFound, "Not Found")
		return
	}
	q := r.URL.Query()
	size, page := 30, 1
	if n, err := strconv.Atoi(q.Get("per_page")); err == nil && n > 0 {
		size = min(n, maxPage)
	}
	if n, err := strconv.Atoi(q.Get("page")); err == nil && n > 0 {
		page = n
	}
	last := max(1, (len(repos)+size-1)/size)
	from, to := min((page-1)*size, len(repos)), min(page*size, len(repos))
	if page < last {
		link := func(n int, rel string) string {
			q.Set("page", strconv.Itoa(n))
			return fmt.Sprintf(`<http://%s%s?%s>; rel=%q`, r.Host, r.URL.Path, q.Encode(), rel)
		}
		w.Header().Set("Link", link(page+1, "next")+", "+link(last, "last"))
	}
	reply(w, http.StatusOK, append([]wire{}, repos[from:to]...))
}

var namePattern = regexp.MustCompile(`^[A-Za-z0-9._-]{1,100}$`)

// maxDescription is the maximum length of a description, in characters.
const maxDescription = 350

func (s *Server) create(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Name, Description, Visibility string
		Private                       bool
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		problem(w, http.StatusBadRequest, "Problems parsing JSON")
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.createsTooFast(w) {
		return
	}
	visibility := cmp.Or(body.Visibility, map[bool]string{true: "private", false: "public"}[body.Private])
	if !namePattern.MatchString(body.Name) || utf8.RuneCountInString(body.Description) > maxDescription {
		problem(w, http.StatusUnprocessableEntity, "Repository creation failed.", "name or description is not valid")
		return
	}
	org := r.PathValue("org")
	made, err := s.addLocked(Repo{Org: org, Name: body.Name, Description: body.Description, Visibility: visibility}, "")
	switch {
	case errors.Is(err, os.ErrNotExist) && s.orgs[strings.ToLower(org)] == nil:
		problem(w, http.StatusNotFound, "Not Found")
	case errors.Is(err, ErrTaken):
		problem(w, http.StatusUnprocessableEntity, "Repository creation failed.", ErrTaken.Error())
	case err != nil:
		problem(w, http.StatusInternalServerError, "Server Error")
	default:
		reply(w, http.StatusCreated, wireOf(&made, r.Host))
	}
}

// createsTooFast enforces the secondary limit.
func (s *Server) createsTooFast(w http.ResponseWriter) bool {
	// Creation number `first` is CreatesPerWindow creations ago. If it is still in the
	// window, the window is full.
	now, first := time.Now(), len(s.creates)-s.cfg.CreatesPerWindow
	if s.cfg.CreatesPerWindow == 0 || first < 0 || now.Sub(s.creates[first]) >= s.cfg.Window {
		s.creates = append(s.creates, now)
		return false
	}
	s.refusals++
	problem(w, http.StatusForbidden, "You have exceeded a secondary rate limit and have been temporarily blocked from content creation.")
	return true
}

func (s *Server) get(w http.ResponseWriter, r *http.Request) {
	found, ok := s.Find(r.PathValue("org"), r.PathValue("name"))
	if !ok {
		problem(w, http.StatusNotFound, "Not Found")
		return
	}
	reply(w, http.StatusOK, wireOf(&found, r.Host))
}

func (s *Server) edit(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Description   *string `json:"description"`
		DefaultBranch *string `json:"default_branch"`
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		problem(w, http.StatusBadRequest, "Problems parsing JSON")
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	repo := s.orgs[strings.ToLower(r.PathValue("org"))][strings.ToLower(r.PathValue("name"))]
	if repo == nil {
		problem(w, http.StatusNotFound, "Not Found")
		return
	}
	if body.DefaultBranch != nil {
		dir := s.Dir(repo.Org, repo.Name)
		refs, err := readRefs(dir)
		if err == nil && refs["refs/heads/"+*body.DefaultBranch] == "" {
			problem(w, http.StatusUnprocessableEntity, "Validation Failed", "The branch "+*body.DefaultBranch+" was not found.")
			return
		}
		if err == nil {
			err = setHead(dir, *body.DefaultBranch)
		}
		if err != nil {
			problem(w, http.StatusInternalServerError, "Server Error")
			return
		}
		repo.DefaultBranch = *body.DefaultBranch
	}
	if body.Description != nil {
		repo.Description = *body.Description
	}
	reply(w, http.StatusOK, wireOf(repo, r.Host))
}

var shaPattern = regexp.MustCompile(`^[0-9a-f]{40}$`)

func (s *Server) setStatus(w http.ResponseWriter, r *http.Request) {
	var status Status
	if err := json.NewDecoder(r.Body).Decode(&status); err != nil {
		problem(w, http.StatusBadRequest, "Problems parsing JSON")
		return
	}
	repo, ok := s.Find(r.PathValue("org"), r.PathValue("name"))
	sha := r.PathValue("sha")
	switch {
	case !ok:
		problem(w, http.StatusNotFound, "Not Found")
	case !slices.Contains([]string{"error", "failure", "pending", "success"}, status.State):
		problem(w, http.StatusUnprocessableEntity, "Validation Failed", "State is not included in the list")
	case !shaPattern.MatchString(sha) || exec.CommandContext(r.Context(), "git", "--git-dir", s.Dir(repo.Org, repo.Name), "cat-file", "-e", sha+"^{commit}").Run() != nil:
		problem(w, http.StatusUnprocessableEntity, "No commit found for SHA: "+sha)
	default:
		s.mu.Lock()
		defer s.mu.Unlock()
		commit := repo.Org + "/" + repo.Name + "@" + sha
		s.statuses[commit] = append(s.statuses[commit], status)
		reply(w, http.StatusCreated, status)
	}
}
