package pack

import (
	"path"
	"slices"
	"strings"
)

// secretNames are names of files that likely hold a secret, as path.Match reads them; all in lower case.
var secretNames = []string{
	".env", ".env.*", "*.env", ".envrc", ".netrc", "_netrc", ".git-credentials", ".pypirc", ".htpasswd",
	"id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "*.p12", "*.pfx", "*.p8", "*.pem", "*.key", "*.ppk",
	"*.jks", "*.keystore", "*.kdbx", "*service-account*.json", "*service_account*.json", "credentials.json", "*.tfstate", "*.agekey",
}

// publicNames are those among them that hold none.
var publicNames = []string{"*.pub", "*.example", "*.sample", "*.template", "*.dist", "*.defaults", "debug.keystore"}

// Secrets returns the files that likely hold a secret, going by their names.
func (t *Tree) Secrets() (names []string) {
	for _, e := range t.Entries {
		if !e.Mode.IsRegular() {
			continue
		}
		name := strings.ToLower(path.Base(e.Name))
		is := func(glob string) bool {
			ok, _ := path.Match(glob, name)
			return ok
		}
		if slices.ContainsFunc(secretNames, is) && !slices.ContainsFunc(publicNames, is) {
			names = append(names, e.Name)
		}
	}
	return names
}
