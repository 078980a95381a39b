from samba.test import (
    Different as Different,
    TestWithGold as TestWithGold,
    consistency_test as consistency_test,
)
