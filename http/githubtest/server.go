package githubtest

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// Config says how the forge behaves. Dir is required.
type Config struct {
	// Dir is the directory of the repositories.
	Dir string
	// Tokens are the credentials that are accepted.
	Tokens []string
	// CreatesPerWindow and Window are the secondary limit on creating content. A
	// CreatesPerWindow of 0 means none.
	CreatesPerWindow int
	Window           time.Duration
	// CallsPerWindow is the primary limit, per token; 0 means none. It resets at every
	// multiple of PrimaryWindow.
	CallsPerWindow int
	PrimaryWindow  time.Duration
}

// Repo is a repository with its REST properties.
type Repo struct {
	ID            int64
	Org, Name     string
	Description   string
	DefaultBranch string
	Visibility    string
	Archived      bool
	Fork          bool
}

// Server is the stand-in.
type Server struct {
	cfg     Config
	backend string // git-http-backend

	mu        sync.Mutex // guards what follows
	orgs      map[string]map[string]*Repo
	lastID    int64
	creates   []time.Time
	refusals  int
	calls     map[string]int // REST calls in the current primary window, by token
	window    int64
	counts    map[string]int
	statuses  map[string][]Status // by ORG/NAME@SHA
	intercept func(http.ResponseWriter, *http.Request) bool
}

// New returns a server without organisations.
func New(cfg Config) (*Server, error) {
	out, err := exec.Command("git", "--exec-path").Output() // it answers at once
	if err != nil {
		return nil, fmt.Errorf("githubtest: git is needed: %w", err)
	}
	backend := filepath.Join(strings.TrimSpace(string(out)), "git-http-backend")
	if _, err := os.Stat(backend); err != nil {
		return nil, fmt.Errorf("githubtest: git's http-backend is needed: %w", err)
	}
	cfg.Window = cmp.Or(cfg.Window, time.Minute)
	cfg.PrimaryWindow = cmp.Or(cfg.PrimaryWindow, time.Hour)
	return &Server{
		cfg: cfg, backend: backend, orgs: map[string]map[string]*Repo{},
		calls: map[string]int{}, counts: map[string]int{}, statuses: map[string][]Status{},
	}, nil
}

// AddOrg adds an organisation.
func (s *Server) AddOrg(org string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.orgs[strings.ToLower(org)] == nil {
		s.orgs[strings.ToLower(org)] = map[string]*Repo{}
	}
}

// ErrTaken means that the organisation already has a repository with that name.
var ErrTaken = errors.New("name already exists on this account")

// Add makes a repository in an existing organisation. The repository is empty if template
// is "", else it gets the content of the bare repository at template.
func (s *Server) Add(r Repo, template string) (Repo, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addLocked(r, template)
}

func (s *Server) addLocked(r Repo, template string) (Repo, error) {
	org := s.orgs[strings.ToLower(r.Org)]
	if org == nil {
		return r, os.ErrNotExist
	}
	if org[strings.ToLower(r.Name)] != nil {
		return r, ErrTaken
	}
	r.Visibility = cmp.Or(r.Visibility, "private")
	r.DefaultBranch = cmp.Or(r.DefaultBranch, "main")
	if err := makeBare(s.Dir(r.Org, r.Name), r.DefaultBranch, template); err != nil {
		return r, fmt.Errorf("making %s/%s: %w", r.Org, r.Name, err)
	}
	s.lastID++
	r.ID = s.lastID
	org[strings.ToLower(r.Name)] = &r
	return r, nil
}

// Find returns a repository and whether it exists.
func (s *Server) Find(org, name string) (Repo, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.orgs[strings.ToLower(org)][strings.ToLower(name)]
	if r == nil {
		return Repo{}, false
	}
	return *r, true
}

// Names returns the names of an organisation's repositories, sorted.
func (s *Server) Names(org string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for _, r := range s.orgs[strings.ToLower(org)] {
		names = append(names, r.Name)
	}
	slices.Sort(names)
	return names
}

// Dir returns the path of a repository.
func (s *Server) Dir(org, name string) string {
	return filepath.Join(s.cfg.Dir, strings.ToLower(org), strings.ToLower(name)+".git")
}

// Intercept makes f get every request first. If f returns true, it has answered the
// request. A nil f removes the function.
func (s *Server) Intercept(f func(w http.ResponseWriter, r *http.Request) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.intercept = f
}

// Count returns how many requests of a kind have arrived, such as "POST /orgs".
func (s *Server) Count(kind string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts[kind]
}

// Creates returns the times of the accepted creations, and how many creations the
// secondary limit has refused.
func (s *Server) Creates() (times []time.Time, refused int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.creates), s.refusals
}

// Status is the status of a commit.
type Status struct {
	State     string `json:"state"`
	TargetURL string `json:"target_url"`
	Context   string `json:"context"`
}

// Statuses returns the statuses that were set of a commit, ORG/NAME@SHA, oldest first.
func (s *Server) Statuses(commit string) []Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.statuses[commit])
}

// ServeHTTP counts the request, passes it to the test's Intercept function, and answers
// it.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	first, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	s.mu.Lock()
	if org := s.orgs[strings.ToLower(first)]; org != nil {
		first = "git"
	}
	s.counts[r.Method+" /"+first]++
	intercept := s.intercept
	s.mu.Unlock()
	if intercept != nil && intercept(w, r) {
		return
	}
	s.Answer(w, r)
}

// Answer answers a request without passing it to an Intercept function.
func (s *Server) Answer(w http.ResponseWriter, r *http.Request) {
	token, known := s.token(r)
	switch {
	case strings.Contains(r.URL.Path, ".git/info/lfs/"):
		s.serveLFS(w, r, known)
	case strings.Contains(r.URL.Path, ".git/"):
		s.serveGit(w, r, known)
	case !known:
		problem(w, http.StatusUnauthorized, "Bad credentials")
	case s.limited(w, token):
	default:
		s.rest().ServeHTTP(w, r)
	}
}

// token returns the request's credential and whether it is accepted.
func (s *Server) token(r *http.Request) (string, bool) {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok {
		_, token, _ = r.BasicAuth()
	}
	return token, slices.Contains(s.cfg.Tokens, token)
}

// serveGit passes a request to git's http-backend.
func (s *Server) serveGit(w http.ResponseWriter, r *http.Request, known bool) {
	org, name, ok := repoOfPath(r.URL.Path)
	if !known {
		w.Header().Set("WWW-Authenticate", `Basic realm="GitHub"`)
		http.Error(w, "Authentication failed", http.StatusUnauthorized)
		return
	}
	if _, found := s.Find(org, name); !ok || !found {
		http.Error(w, "Repository not found.", http.StatusNotFound)
		return
	}
	// CGI needs the length of the body, which git does not always send.
	body, err := spool(r, s.cfg.Dir)
	if err != nil {
		http.Error(w, "the body did not arrive", http.StatusBadRequest)
		return
	}
	defer body.Close()
	_, rest, _ := strings.Cut(r.URL.Path, ".git/")
	r.URL.Path = "/" + strings.ToLower(org) + "/" + strings.ToLower(name) + ".git/" + rest
	(&cgi.Handler{
		Path: s.backend, Root: "/", Dir: s.cfg.Dir, Stderr: io.Discard,
		Env: []string{
			"GIT_PROJECT_ROOT=" + s.cfg.Dir, "GIT_HTTP_EXPORT_ALL=1", "REMOTE_USER=takt", "GIT_CONFIG_NOSYSTEM=1",
			"GIT_CONFIG_GLOBAL=" + os.DevNull, "GIT_CONFIG_COUNT=2", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*",
			"GIT_CONFIG_KEY_1=receive.autogc", "GIT_CONFIG_VALUE_1=false",
		},
	}).ServeHTTP(w, r)
}

func repoOfPath(path string) (org, name string, ok bool) {
	repo, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), ".git/")
	org, name, ok = strings.Cut(repo, "/")
	return org, name, ok && !strings.Contains(name, "/")
}
