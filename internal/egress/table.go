package egress

import (
	"cmp"
	"log/slog"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/internal/nft"
)

// table is one table in the kernel.
type table struct {
	*nft.Owned[*nft.Static]
	layout *nft.Layout
	// family is nil for the table of bridges.
	family *family
	// want is the desired content; nil for no table. The Owned's lock guards it.
	want *nft.Static
	// setting reports whether set is running. The Owned's lock guards it.
	setting bool
}

// newTable returns a table. The function changed is called when the table begins to fail or works again, and when it
// was compared with the desired content or repaired.
func newTable(log *slog.Logger, name string, layout *nft.Layout, changed func()) *table {
	t := &table{layout: layout}
	t.Owned = nft.NewOwned(nft.Config[*nft.Static]{
		Log:     log.With("family", name),
		Table:   layout.Table,
		Image:   func(*nft.Static) *nft.Static { return t.want },
		Changed: changed,
		Applied: func(*nft.Static) {
			if !t.setting {
				changed()
			}
		},
	})

	return t
}

// set makes the table have exactly these elements, or deletes it if it is not needed.
func (t *table) set(elements nft.Elements, needed bool) error {
	slices.SortFunc(elements, compareElements)
	t.Lock()
	defer t.Unlock()
	same := needed == (t.want != nil) && (t.want == nil || slices.Equal(t.want.Elements, elements))
	if !same {
		t.want = nil
		if needed {
			t.want = &nft.Static{Layout: t.layout, Elements: elements}
		}
	}

	t.setting = true
	defer func() { t.setting = false }()
	return t.Apply(same)
}

// compareElements orders elements, so that the change between two contents is cheap to compute.
func compareElements(a, b nft.Element) int {
	return cmp.Or(strings.Compare(a.Set, b.Set), strings.Compare(a.Key, b.Key), strings.Compare(a.Value, b.Value))
}
