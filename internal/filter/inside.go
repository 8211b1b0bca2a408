package filter

import (
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/internal/nft"
)

// nameSize is the size of a link's name in the kernel, with at least one octet of zero at its end (IFNAMSIZ).
const nameSize = 16

// insideLinks appends the elements of insideSet: the names of links, and the empty one. Names and beginnings of names are
// intervals of one set, so that one lookup judges a link.
func insideLinks(list []nft.SetElement, names []string) []nft.SetElement {
	var intervals []nft.Element
	for _, name := range append([]string{""}, names...) {
		beginning, isPrefix := strings.CutSuffix(name, "*")
		if len(beginning) >= nameSize || isPrefix && beginning == "" {
			continue // no link has this name; every link has that one
		}
		after := []byte(beginning)
		if !isPrefix {
			after = padName(beginning)
		}
		after[len(after)-1]++
		intervals = append(intervals, nft.Element{Key: string(padName(beginning)), Value: string(padName(string(after)))})
	}
	slices.SortFunc(intervals, func(a, b nft.Element) int {
		if a.Key != b.Key {
			return strings.Compare(a.Key, b.Key)
		}
		return strings.Compare(b.Value, a.Value)
	})
	end := ""
	for _, e := range intervals {
		// An interval lies within the one before it, or behind it.
		if e.Key >= end {
			list, end = append(list, element(insideSet, e.Key, e.Value)), e.Value
		}
	}
	return list
}

func padName(name string) []byte { return append([]byte(name), make([]byte, nameSize)...)[:nameSize] }
