package client

import "strconv"

// Facts say where a source comes from. Members that are empty are not sent. A controller shows
// them; one that does not know them ignores them.
type Facts struct {
	// Commit has 7 to 64 hexadecimal digits.
	Commit string `json:"commit,omitempty"`
	Branch string `json:"branch,omitempty"`
	// Dirty says that files of the source are not as in the commit.
	Dirty *bool `json:"dirty,omitempty"`
	// Remote is the URL of the repository, without credentials.
	Remote string `json:"remote,omitempty"`
}

// parts returns the fields of the form.
func (f Facts) parts() (parts []part) {
	dirty := ""
	if f.Dirty != nil {
		dirty = strconv.FormatBool(*f.Dirty)
	}
	for _, fact := range []part{field("commit", f.Commit), field("branch", f.Branch), field("dirty", dirty), field("remote", f.Remote)} {
		if fact.value != "" {
			parts = append(parts, fact)
		}
	}
	return parts
}
