import shutil

import pytest


@pytest.fixture
def chromium():
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("no Chromium on this machine: the page is not tested in a browser")
    return browser
