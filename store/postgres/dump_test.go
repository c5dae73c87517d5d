package postgres

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/store"
)

const someDump = `--
-- PostgreSQL database dump
--

\restrict x
CREATE SCHEMA public;
CREATE FUNCTION public.f() RETURNS void LANGUAGE sql AS $$
COPY nothing
$$;
COPY public.audit (id, target) FROM stdin;
1	COPY public.build_files (build) FROM stdin;
2	\\.
\.

COPY public.build_files (build, kind, name, size, sha256, location, object, copy_due) FROM stdin;
7	certs	builds/id/certs.zip	12	\\x6162	both	builds/id/certs-x.zip	\N
8	source	builds/other/source.zip	0	\\x63	local	\N	-infinity
\.

COPY public.key_check (only_row, sealed) FROM stdin;
t	\\x746b74
\.

SELECT pg_catalog.setval('public.audit_id_seq', 1, false);
`

func TestDumpsAreReadRowByRow(t *testing.T) {
	t.Parallel()
	var rows []store.FileRow
	take := func(row store.FileRow) error { rows = append(rows, row); return nil }
	check, err := ReadDump(strings.NewReader(someDump), take)
	require.NoError(t, err)
	require.Equal(t, "tkt", string(check))
	require.Equal(t, []store.FileRow{
		{
			FileKey: store.FileKey{Build: 7, Kind: store.CertsFile}, BuildID: "id",
			File: store.File{Name: "builds/id/certs.zip", Size: 12, SHA256: [32]byte{'a', 'b'}, Location: store.InBoth, Object: "builds/id/certs-x.zip"},
		},
		{
			FileKey: store.FileKey{Build: 8, Kind: "source"}, BuildID: "other",
			File: store.File{Name: "builds/other/source.zip", SHA256: [32]byte{'c'}, Location: store.OnDisk},
		},
	}, rows)

	for _, end := range []string{"\n2\t\\\\.", "\n7\tcerts\tbuilds", "setval("} {
		_, err := ReadDump(strings.NewReader(someDump[:strings.Index(someDump, end)+len(end)]), take)
		require.ErrorContains(t, err, "unexpected EOF", end)
	}
	_, err = ReadDump(strings.NewReader(strings.Replace(someDump, "7\tcerts", "x\tcerts", 1)), take)
	require.ErrorContains(t, err, "a file's row")
}
