package postgres

import "strings"

// sanitize returns s as PostgreSQL can keep it: valid UTF-8 without NUL.
func sanitize(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "")
}
