package relay

import (
	"fmt"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Try has the kernel check the table of a family without an effect. It returns the error of a refusal, and names the part
// that the kernel refuses, as nft.Layout.Try does.
func Try(of lb.Family) (part string, err error) {
	for _, f := range families() {
		if f.Family.Family == of {
			return f.layout(strict(), Timers{}.withDefaults().IdleTime).Try()
		}
	}
	panic(fmt.Sprintf("no family %v", of))
}
