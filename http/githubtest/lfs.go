package githubtest

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

var oidPattern = regexp.MustCompile(`^[0-9a-f]{64}$`)

// lfsObject is a large file in the batch API of Git LFS.
type lfsObject struct {
	OID     string         `json:"oid"`
	Size    int64          `json:"size"`
	Actions map[string]any `json:"actions,omitempty"`
	Error   map[string]any `json:"error,omitempty"`
}

// serveLFS serves the batch API of Git LFS and the transfers that it names.
func (s *Server) serveLFS(w http.ResponseWriter, r *http.Request, known bool) {
	org, name, ok := repoOfPath(r.URL.Path)
	if _, found := s.Find(org, name); !known || !ok || !found {
		http.Error(w, `{"message":"Not found"}`, http.StatusNotFound)
		return
	}
	_, rest, _ := strings.Cut(r.URL.Path, ".git/info/lfs/objects/")
	switch {
	case rest == "batch" && r.Method == http.MethodPost:
		s.batchLFS(w, r, org, name)
	case oidPattern.MatchString(rest) && r.Method == http.MethodGet:
		http.ServeFile(w, r, s.LFSFile(org, name, rest))
	case oidPattern.MatchString(rest) && r.Method == http.MethodPut:
		if err := keep(s.LFSFile(org, name, rest), r.Body); err != nil {
			http.Error(w, `{"message":"not kept"}`, http.StatusInternalServerError)
		}
	default:
		http.Error(w, `{"message":"Not found"}`, http.StatusNotFound)
	}
}

// LFSFile returns the path of a repository's large file.
func (s *Server) LFSFile(org, name, oid string) string {
	return filepath.Join(s.Dir(org, name), "lfs", oid)
}

func keep(path string, body io.Reader) error {
	content, err := io.ReadAll(body)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o750)
	}
	if err != nil {
		return err
	}
	return os.WriteFile(path, content, 0o600)
}

func (s *Server) batchLFS(w http.ResponseWriter, r *http.Request, org, name string) {
	var batch struct {
		Operation string      `json:"operation"`
		Objects   []lfsObject `json:"objects"`
	}
	if err := json.NewDecoder(r.Body).Decode(&batch); err != nil {
		http.Error(w, `{"message":"no JSON"}`, http.StatusUnprocessableEntity)
		return
	}
	for i := range batch.Objects {
		o := &batch.Objects[i]
		if !oidPattern.MatchString(o.OID) {
			http.Error(w, `{"message":"not an oid"}`, http.StatusUnprocessableEntity)
			return
		}
		_, err := os.Stat(s.LFSFile(org, name, o.OID))
		href := map[string]any{
			"href":   "http://" + r.Host + "/" + org + "/" + name + ".git/info/lfs/objects/" + o.OID,
			"header": map[string]string{"Authorization": r.Header.Get("Authorization")},
		}
		switch {
		case batch.Operation == "download" && err != nil:
			o.Error = map[string]any{"code": http.StatusNotFound, "message": "Object does not exist"}
		case batch.Operation == "download" || err != nil:
			o.Actions = map[string]any{batch.Operation: href}
		}
	}
	w.Header().Set("Content-Type", "application/vnd.git-lfs+json")
	_ = json.NewEncoder(w).Encode(map[string]any{"transfer": "basic", "objects": batch.Objects}) // an error means that the client has disconnected
}
