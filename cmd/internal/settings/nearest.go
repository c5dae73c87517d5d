package settings

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// unknown returns an error for each key of a settings file and each variable TAKT_… in
// the environment that belongs to no setting, because a misspelt name would otherwise be
// ignored silently.
func unknown(table []Setting, file string, values map[string]string, variables []string) []error {
	var keys, names []string
	for _, s := range table {
		keys, names = append(keys, s.Key()), append(names, s.Env()[0])
	}
	var faults []error
	for _, key := range slices.Sorted(maps.Keys(values)) {
		if !slices.Contains(keys, key) {
			faults = append(faults, fmt.Errorf("%s: unknown setting %q%s", file, key, meant(key, keys)))
		}
	}
	for _, name := range slices.Sorted(slices.Values(variables)) {
		if strings.HasPrefix(name, "TAKT_") && !slices.Contains(names, name) && !othersVariable.MatchString(name) {
			faults = append(faults, fmt.Errorf("unknown setting %s in the environment%s", name, meant(name, names)))
		}
	}
	return faults
}

// othersVariable matches the variables that are not for `takt serve`: those for clients,
// builds and tests, and those that Kubernetes sets for a service named takt.
var othersVariable = regexp.MustCompile(`^TAKT_(URL|CA_FILE|API_KEY_FILE` +
	`|BUILD_ID|PLATFORM|ATTEMPT|SOURCE|CERTS|OUTPUT` +
	`|TEST_.*|SERVICE_HOST|SERVICE_PORT.*|PORT|PORT_.*)$`)

// UnknownFlag adds the name of the nearest flag of cmd to err if err reports an unknown
// flag.
func UnknownFlag(cmd *cobra.Command, err error) error {
	missing, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok || missing.GetSpecifiedShortnames() != "" {
		return err
	}
	if missing.GetSpecifiedName() == "db" {
		return fmt.Errorf("%w; the database is PostgreSQL: takt's own in --data-dir, or the one of --database-url", err)
	}
	var known []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			known = append(known, "--"+f.Name)
		}
	})
	return fmt.Errorf("%w%s", err, meant("--"+missing.GetSpecifiedName(), known))
}

// meant suggests the known name that is nearest to name. It returns "" if none is near. A
// name is near if it begins so, or if at most two letters or a third of them would change.
func meant(name string, known []string) string {
	var near cobra.Command // because cobra counts those letters
	for _, k := range known {
		near.AddCommand(&cobra.Command{Use: k, Run: func(*cobra.Command, []string) {}})
	}
	for near.SuggestionsMinimumDistance <= max(2, len(name)/3) {
		if found := near.SuggestionsFor(name); len(found) > 0 {
			return "; did you mean " + found[0] + "?"
		}
		near.SuggestionsMinimumDistance++
	}
	return ""
}
